use std::{fmt, time::Duration};

use humantime_serde::Serde;
use serde::{Deserialize, Serialize};

use crate::{
    Nat, Probability, QueueLimit, Radio, Rate, Repeated, Trace,
    bottleneck::Service,
    codel::CodelConfig,
    delay::{self, Distribution},
    loss::{GilbertElliott, Model},
};

/// Limit of a queue that has none in its configuration.
const QUEUE: QueueLimit = QueueLimit::Time(Duration::from_millis(500));

/// Settings of a link. The default is a link that changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// From the client to the network.
    pub up: PipeConfig,
    /// From the network to the client.
    pub down: PipeConfig,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nat: Option<Nat>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub radio: Option<Radio>,
    /// Time in which no packet enters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outage: Option<Repeated>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handover: Option<Handover>,
    /// Times at which the client gets another address. Its connections end there, without a notice.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub address_changes: Vec<Serde<Duration>>,
}

/// Periods in which packets are delayed by more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handover {
    pub period: Repeated,
    /// Delay in addition to that of the direction.
    #[serde(with = "humantime_serde")]
    pub delay: Duration,
}

/// Settings of one direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PipeConfig {
    #[serde(with = "humantime_serde")]
    pub delay: Duration,
    #[serde(with = "humantime_serde")]
    pub jitter: Duration,
    pub distribution: Distribution,
    /// True if jitter may change the order of packets.
    pub reorder: bool,
    /// Mean loss on the channel.
    pub loss: Probability,
    /// Mean number of packets that are lost together. `None`: losses are independent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_burst: Option<f64>,
    /// All parameters of losses in bursts, instead of `loss` and `loss_burst`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gilbert_elliott: Option<GilbertElliott>,
    pub duplicate: Probability,
    /// Probability that one bit of a packet is inverted.
    pub corrupt: Probability,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Name of a trace, instead of `rate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Limit of the queue. Default with a rate or a trace: 500 ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueLimit>,
    /// Drops packets that stay in the queue for too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codel: Option<CodelConfig>,
}

/// Why a configuration is no link. Each names the setting below `up` or `down`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{0}.gilbert_elliott contains the loss: leave out `loss` and `loss_burst`")]
    LossTwice(&'static str),
    #[error("{0}.loss_burst must be 1 or more, and `loss` below burst / (burst + 1): a good state lasts one packet")]
    Burst(&'static str),
    #[error("{0}.gilbert_elliott.step must be longer than 0")]
    Step(&'static str),
    #[error("{0} has a rate and a trace: leave out one of them")]
    RateTwice(&'static str),
    #[error("{0}.queue and {0}.codel need a rate or a trace")]
    QueueWithoutRate(&'static str),
    #[error("{0}.jitter is larger than the delay allows: uniform needs a delay of 1 x jitter, normal of 3 x jitter")]
    Jitter(&'static str),
    #[error("{0}.reorder needs jitter")]
    Reorder(&'static str),
    #[error("{0}.trace was not loaded")]
    NoTrace(&'static str),
    #[error("{0}.for must be longer than 0, and not longer than `every`")]
    Period(&'static str),
}

impl Config {
    /// Errors: see [`ConfigError`].
    pub fn check(&self) -> Result<(), ConfigError> {
        self.up.check("up")?;
        self.down.check("down")?;
        let handover = self.handover.map(|handover| handover.period);
        for (name, period) in [("outage", self.outage), ("handover", handover)] {
            if period.is_some_and(|period| !period.is_valid()) {
                return Err(ConfigError::Period(name));
            }
        }
        Ok(())
    }

    pub(crate) fn delay(&self, pipe: &PipeConfig) -> delay::Settings {
        delay::Settings {
            delay: pipe.delay,
            jitter: pipe.jitter,
            distribution: pipe.distribution,
            reorder: pipe.reorder,
            handover: self.handover.map(|handover| (handover.period, handover.delay)),
        }
    }
}

impl PipeConfig {
    fn check(&self, name: &'static str) -> Result<(), ConfigError> {
        let has_loss = self.loss > Probability::ZERO || self.loss_burst.is_some();
        if self.gilbert_elliott.is_some() && has_loss {
            return Err(ConfigError::LossTwice(name));
        }
        if self.gilbert_elliott.is_some_and(|model| model.step.is_some_and(|step| step.is_zero())) {
            return Err(ConfigError::Step(name));
        }
        if self.loss_burst.is_some_and(|burst| GilbertElliott::of_bursts(self.loss, burst).is_none()) {
            return Err(ConfigError::Burst(name));
        }
        let has_service = self.rate.is_some() || self.trace.is_some();
        match () {
            () if self.rate.is_some() && self.trace.is_some() => Err(ConfigError::RateTwice(name)),
            () if !has_service && (self.queue.is_some() || self.codel.is_some()) => {
                Err(ConfigError::QueueWithoutRate(name))
            }
            () if self.reorder && self.jitter.is_zero() => Err(ConfigError::Reorder(name)),
            () if self.jitter_before() > self.delay => Err(ConfigError::Jitter(name)),
            () => Ok(()),
        }
    }

    /// Largest time by which jitter makes a packet earlier.
    fn jitter_before(&self) -> Duration {
        match self.distribution {
            Distribution::Uniform => self.jitter,
            Distribution::Normal => self.jitter.saturating_mul(3),
            Distribution::Exponential | Distribution::Pareto => Duration::ZERO,
        }
    }

    pub(crate) fn loss(&self) -> Model {
        match (self.gilbert_elliott, self.loss_burst) {
            (Some(model), _) => Model::Bursts(model),
            (None, Some(burst)) => {
                GilbertElliott::of_bursts(self.loss, burst).map_or(Model::Independent(self.loss), Model::Bursts)
            }
            (None, None) => Model::Independent(self.loss),
        }
    }

    /// Returns the rate or the trace with its queue, if the direction has one.
    pub(crate) fn service(
        &self,
        name: &'static str,
        trace: Option<&Trace>,
    ) -> Result<Option<(Service, QueueLimit, Option<CodelConfig>)>, ConfigError> {
        let service = match (self.rate, &self.trace) {
            (Some(rate), _) => Service::Rate(rate),
            (None, Some(_)) => Service::Trace(trace.ok_or(ConfigError::NoTrace(name))?.clone()),
            (None, None) => return Ok(None),
        };
        Ok(Some((service, self.queue.unwrap_or(QUEUE), self.codel)))
    }
}

/// Writes the values that differ from a link that changes nothing: `1.6Mbit/s, 75 ms, 0.5 % lost`.
impl fmt::Display for PipeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.rate.map(|rate| rate.to_string()));
        parts.extend(self.trace.as_ref().map(|trace| format!("trace {trace}")));
        let ms = |time: Duration| format!("{} ms", time.as_secs_f64() * 1000.0);
        parts.push(ms(self.delay));
        if !self.jitter.is_zero() {
            parts.push(format!("jitter {}", ms(self.jitter)));
        }
        let loss = self.gilbert_elliott.map_or(self.loss.get(), |model| model.mean_loss());
        if loss > 0.0 {
            parts.push(format!("{} % lost", (loss * 100_000.0).round() / 1000.0));
        }
        f.write_str(&parts.join(", "))
    }
}
