//! A thread on which requests to the back end run. It keeps encryption and parsing away from the threads of the shards,
//! and all shards share its connections.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
    task::JoinHandle,
};

/// The thread. Dropping this value ends it and all its tasks.
#[derive(Debug)]
pub struct HookThread {
    handle: Handle,
    /// Dropping the sender ends the thread.
    _stop: oneshot::Sender<()>,
}

impl HookThread {
    /// Starts the thread. Errors: the system refuses a thread.
    pub fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let handle = runtime.handle().clone();
        std::thread::Builder::new().name(name.into()).spawn(move || {
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { handle, _stop: stop })
    }

    /// Runs a task on the thread until the thread ends.
    pub fn start_task(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.handle.spawn(task));
    }

    /// Runs a task on the thread. Dropping the result cancels the task.
    pub fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> Running<T> {
        Running(self.handle.spawn(task))
    }
}

/// Result of a task that is cancelled when this value is dropped. `None`: the thread has ended.
#[derive(Debug)]
pub struct Running<T>(JoinHandle<T>);

impl<T> Future for Running<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        Pin::new(&mut self.0).poll(cx).map(Result::ok)
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
