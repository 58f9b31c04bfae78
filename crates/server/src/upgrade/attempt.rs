use std::{future::pending, sync::Arc, thread};

use tokio::sync::{mpsc, oneshot};

use super::{Config, Handed, Order, Progress, Target, UpgradeError, hand_over};

/// The upgrade that is in progress, if any. Only one runs at a time.
#[derive(Default)]
pub struct Attempt(Option<Running>);

struct Running {
    result: oneshot::Receiver<Result<u32, UpgradeError>>,
    /// `None` for an upgrade by a signal.
    progress: Option<mpsc::UnboundedSender<Progress>>,
}

impl Attempt {
    /// Starts an upgrade on a thread of its own. `order` is absent for a signal.
    pub fn begin(&mut self, handed: Option<Arc<Handed>>, order: Option<Order>, config: Config) {
        let (target, progress) = match order {
            Some(Order { target, progress }) => (target, Some(progress)),
            None => (Target::default(), None),
        };
        let refuse = |why: &str| {
            tracing::warn!(why, "the server is not upgraded");
            report(&progress, Progress::Failed { why: why.into() });
        };
        let Some(handed) = handed else { return refuse("the server is draining") };
        if self.0.is_some() {
            return refuse("another upgrade is in progress");
        }
        tracing::info!(binary = ?target.binary, "upgrading: starting the new process");
        report(&progress, Progress::Started);
        let (sender, result) = oneshot::channel();
        let work = move || drop(sender.send(hand_over(&handed, target.binary.as_deref(), config)));
        match thread::Builder::new().name("upgrade".into()).spawn(work) {
            Ok(_) => self.0 = Some(Running { result, progress }),
            Err(error) => refuse(&error.to_string()),
        }
    }

    /// Waits for the end of the upgrade; forever if there is none. Returns the process id of the new process.
    ///
    /// Errors: see [`hand_over`].
    pub async fn end(&mut self) -> Result<u32, UpgradeError> {
        let Some(Running { result, progress }) = &mut self.0 else { return pending().await };
        let ended = result.await.unwrap_or(Err(UpgradeError::Panicked));
        report(
            progress,
            match &ended {
                Ok(pid) => Progress::Serving { pid: *pid },
                Err(error) => Progress::Failed { why: error.to_string() },
            },
        );
        self.0 = None;
        ended
    }
}

fn report(progress: &Option<mpsc::UnboundedSender<Progress>>, step: Progress) {
    if let Some(progress) = progress {
        let _ = progress.send(step);
    }
}
