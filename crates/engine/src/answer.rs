use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// A result that is often ready at once. A memory engine can then answer without allocating a future.
pub enum Answer<T> {
    Now(Option<T>),
    Later(Pin<Box<dyn Future<Output = T> + Send>>),
}

impl<T> Answer<T> {
    pub fn now(value: T) -> Self {
        Answer::Now(Some(value))
    }
}

impl<T: Unpin> Future for Answer<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match self.get_mut() {
            Answer::Now(value) => Poll::Ready(value.take().expect("an answer is taken once")),
            Answer::Later(future) => future.as_mut().poll(cx),
        }
    }
}
