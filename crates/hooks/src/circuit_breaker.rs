//! A circuit breaker: stops requests to a server that does not answer, and lets one request through from time to time
//! to find out whether it answers again.
//!
//! ```text
//!                    failures_max failures in a row
//!     ┌─────────┐ ──────────────────────────────────────► ┌────────┐
//!     │ Closed  │                                         │  Open  │ ◄──┐
//!     └─────────┘ ◄──── the probe is answered ──┐         └────────┘    │
//!                                          ┌──────────┐       │         │
//!                                          │ HalfOpen │ ◄─────┘         │ the probe fails
//!                                          └──────────┘  after `pause`  │
//!                                               └───────────────────────┘
//! ```

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Number of failures in a row after which the breaker opens.
    pub failures_max: u32,
    /// Time before a probe.
    pub pause: Duration,
}

/// State for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    Closed,
    HalfOpen,
    Open,
}

impl BreakerState {
    pub fn name(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::HalfOpen => "half_open",
            BreakerState::Open => "open",
        }
    }
}

/// The breaker of one server. It logs one line when it opens, and one when it closes.
#[derive(Debug)]
pub struct CircuitBreaker {
    config: BreakerConfig,
    /// Name of the requests in the log.
    name: &'static str,
    /// URL in the log, without secrets.
    url: String,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Closed {
        failures: u32,
    },
    Open {
        until: Instant,
    },
    /// `is_probed`: a probe is in progress.
    HalfOpen {
        is_probed: bool,
    },
}

/// The breaker is open. A retry may succeed after `wait`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IsOpen {
    pub wait: Duration,
}

/// Permission for one request. Report its result with [`Permit::succeeded`] or [`Permit::failed`]. A permit that is
/// dropped counts as neither; a dropped probe lets the next request be the probe.
#[derive(Debug)]
pub struct Permit {
    breaker: Arc<CircuitBreaker>,
    is_probe: bool,
}

impl CircuitBreaker {
    pub fn new(name: &'static str, url: String, config: BreakerConfig) -> Arc<Self> {
        Arc::new(Self { config, name, url, state: Mutex::new(State::Closed { failures: 0 }) })
    }

    /// Returns the permission for a request.
    ///
    /// Errors: the breaker is open, or half open with a probe in progress.
    pub fn try_acquire(self: &Arc<Self>, now: Instant) -> Result<Permit, IsOpen> {
        let mut state = self.state();
        let is_probe = match *state {
            State::Closed { .. } => false,
            State::Open { until } if now < until => return Err(IsOpen { wait: until - now }),
            State::HalfOpen { is_probed: true } => return Err(IsOpen { wait: self.config.pause }),
            State::Open { .. } | State::HalfOpen { is_probed: false } => true,
        };
        if is_probe {
            *state = State::HalfOpen { is_probed: true };
        }
        Ok(Permit { breaker: self.clone(), is_probe })
    }

    pub fn state_at(&self, now: Instant) -> BreakerState {
        match *self.state() {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { until } if now < until => BreakerState::Open,
            State::Open { .. } | State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, is_probe: bool, is_success: bool, now: Instant) {
        let mut state = self.state();
        match (&mut *state, is_success) {
            (State::Closed { failures }, true) => *failures = 0,
            (State::Closed { failures }, false) => {
                *failures += 1;
                if *failures >= self.config.failures_max {
                    *state = State::Open { until: now + self.config.pause };
                    let pause_ms = self.config.pause.as_millis() as u64;
                    tracing::warn!(
                        hook = self.name,
                        url = self.url,
                        pause_ms,
                        "the back end does not answer; circuit breaker opened"
                    );
                }
            }
            (State::HalfOpen { .. }, true) if is_probe => {
                *state = State::Closed { failures: 0 };
                tracing::info!(hook = self.name, url = self.url, "the back end answers again; circuit breaker closed");
            }
            (State::HalfOpen { .. }, false) if is_probe => *state = State::Open { until: now + self.config.pause },
            // The result of a request from before the breaker opened.
            (State::Open { .. } | State::HalfOpen { .. }, _) => {}
        }
    }
}

impl Permit {
    /// Reports that the server has answered.
    pub fn succeeded(self, now: Instant) {
        self.breaker.report(self.is_probe, true, now);
    }

    /// Reports that the server has not answered.
    pub fn failed(self, now: Instant) {
        self.breaker.report(self.is_probe, false, now);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.is_probe
            && let State::HalfOpen { is_probed } = &mut *self.breaker.state()
        {
            *is_probed = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(5);

    fn breaker() -> (Arc<CircuitBreaker>, Instant) {
        let config = BreakerConfig { failures_max: 3, pause: PAUSE };
        (CircuitBreaker::new("publish", "https://app.example/".into(), config), Instant::now())
    }

    fn fail(breaker: &Arc<CircuitBreaker>, times: usize, now: Instant) {
        (0..times).for_each(|_| breaker.try_acquire(now).unwrap().failed(now));
    }

    #[test]
    fn opens_after_failures_in_a_row() {
        let (breaker, now) = breaker();
        for _ in 0..10 {
            fail(&breaker, 2, now);
            breaker.try_acquire(now).unwrap().succeeded(now);
        }
        assert_eq!(breaker.state_at(now), BreakerState::Closed);
        fail(&breaker, 3, now);
        assert_eq!(breaker.state_at(now), BreakerState::Open);
        assert_eq!(breaker.try_acquire(now + PAUSE / 5).unwrap_err(), IsOpen { wait: PAUSE * 4 / 5 });
    }

    #[test]
    fn one_probe_decides() {
        let (breaker, now) = breaker();
        let late = breaker.try_acquire(now).unwrap();
        fail(&breaker, 3, now);
        late.succeeded(now);
        assert_eq!(breaker.state_at(now), BreakerState::Open, "a late result does not count");
        let then = now + PAUSE;
        let probe = breaker.try_acquire(then).unwrap();
        assert_eq!(breaker.state_at(then), BreakerState::HalfOpen);
        assert!(breaker.try_acquire(then).is_err(), "a second probe");
        probe.failed(then);
        assert_eq!(breaker.state_at(then), BreakerState::Open);
        let then = then + PAUSE;
        breaker.try_acquire(then).unwrap().succeeded(then);
        assert_eq!(breaker.state_at(then), BreakerState::Closed);
        fail(&breaker, 2, then);
        assert_eq!(breaker.state_at(then), BreakerState::Closed, "failures are counted from zero");
    }

    #[test]
    fn dropped_probe_is_replaced() {
        let (breaker, now) = breaker();
        fail(&breaker, 3, now);
        let then = now + PAUSE;
        drop(breaker.try_acquire(then).unwrap());
        breaker.try_acquire(then).unwrap().succeeded(then);
        assert_eq!(breaker.state_at(then), BreakerState::Closed);
    }
}
