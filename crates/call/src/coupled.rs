//! Coupled control of several senders: all of them ask one group. Source: RFC 8699.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use millrace_sfu::congestion::{
    CongestionController, Report,
    coupled::{Coupled, FlowId},
};

/// Senders that share the sum of their rates.
#[derive(Clone, Debug, Default)]
pub struct Group(Arc<Mutex<Coupled>>);

impl Group {
    /// Adds a sender with its own controller, and returns the controller to use instead. `desired_bits_per_s`: the
    /// highest rate that the sender can use.
    pub fn add(
        &self,
        controller: Box<dyn CongestionController>,
        desired_bits_per_s: f64,
    ) -> Box<dyn CongestionController> {
        let name = controller.name();
        let id = self.lock().add(controller, 1.0, desired_bits_per_s);
        Box::new(Flow { group: self.clone(), id, name })
    }

    /// A panic of another sender leaves valid rates behind.
    fn lock(&self) -> MutexGuard<'_, Coupled> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Controller of one sender of a group.
#[derive(Debug)]
struct Flow {
    group: Group,
    id: FlowId,
    name: &'static str,
}

impl CongestionController for Flow {
    fn name(&self) -> &'static str {
        self.name
    }

    fn bits_per_s(&self) -> u64 {
        self.group.lock().bits_per_s(self.id).unwrap_or_default()
    }

    fn loss(&self) -> Option<f64> {
        self.group.lock().controller(self.id).and_then(|controller| controller.loss())
    }

    /// A probe of one sender shows what the path carries besides all others, so it would count their share twice.
    fn allows_probing(&self) -> bool {
        false
    }

    fn handle_report(&mut self, report: &Report<'_>) {
        self.group.lock().handle_report(self.id, report);
    }

    fn raise_to(&mut self, _bits_per_s: f64) {}

    fn set_bits_per_s(&mut self, _bits_per_s: f64) {}

    fn set_max(&mut self, bits_per_s: f64) {
        self.group.lock().configure(self.id, 1.0, bits_per_s);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.group.lock().handle_timeout(now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millrace_sfu::congestion::Algorithm;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn loss_of_one_sender_is_shared() {
        let now = Instant::now();
        let group = Group::default();
        let controller = || Algorithm::Rrtcc(Default::default()).controller(1e6, now);
        let (mut one, other) = (group.add(controller(), 1e9), group.add(controller(), 1e9));
        assert_eq!((one.name(), one.bits_per_s(), other.bits_per_s()), ("rrtcc", 1_000_000, 1_000_000));
        let (now, rtt) = (now + Duration::from_secs(1), Duration::from_millis(100));
        one.handle_report(&Report { now, arrivals: &[], lost: 40, covered: 100, rtt, remb_bits_per_s: None });
        assert!(one.bits_per_s() < 950_000 && one.bits_per_s() == other.bits_per_s(), "{}", one.bits_per_s());
    }
}
