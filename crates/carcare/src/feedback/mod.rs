//! Driving feedback: reads the records of all cars, and publishes events, drives and alerts.
//!
//! One node follows all cars: the live node with the lowest name, as long as it renews its entry in the state
//! [`LEADER`]. It keeps the state of each car, with the position of the last record that it contains, in the state
//! [`STATES`]. The next node continues there, so that a restart or a change of the node neither loses nor doubles an
//! event.
//!
//! `millrace_driving` decides. This module reads and writes channels, and has a thread of its own.
//!
//! Read first: [`Feedback`], [`Config`]. Source: docs/how-to/driving-feedback.md.

mod channels;
mod config;
mod metrics;
mod notice;
mod rules;
mod service;
mod store;
mod tracked;

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};

use millrace_engine::Engine;
use millrace_node::Router;
use tokio::sync::watch;

pub use channels::{ALERTS, DRIVES, GEOFENCES, LEADER, NAMESPACE, STATES};
pub use config::Config;
pub use metrics::Metrics;
pub use notice::{Notice, Notify};
use rules::Rules;

/// The running service of one node.
pub struct Feedback {
    stop: watch::Sender<bool>,
    metrics: Arc<Metrics>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Feedback {
    /// Starts the thread. `router` needs the mailbox of a service.
    ///
    /// Errors: the system refuses a thread.
    pub fn start(config: &Config, engine: Arc<dyn Engine>, router: Arc<Router>) -> io::Result<Self> {
        Self::start_with(config, engine, router, None)
    }

    /// As [`Feedback::start`]. `notify` gets the alerts about which a person must be notified.
    pub fn start_with(
        config: &Config,
        engine: Arc<dyn Engine>,
        router: Arc<Router>,
        notify: Option<Arc<dyn Notify>>,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let (rules, metrics) = (Rules::new(config), Arc::<Metrics>::default());
        let counted = metrics.clone();
        let (stop, stopped) = watch::channel(false);
        let thread = std::thread::Builder::new()
            .name("driving".into())
            .spawn(move || runtime.block_on(service::run(rules, engine, router, counted, notify, stopped)))?;
        Ok(Self { stop, metrics, thread: Mutex::new(Some(thread)) })
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Stores the states of all cars, within two seconds, and ends the thread.
    pub fn stop(&self) {
        self.stop.send_replace(true);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Feedback {
    fn drop(&mut self) {
        self.stop();
    }
}
