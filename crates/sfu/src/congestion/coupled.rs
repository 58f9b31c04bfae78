//! Coupled congestion control: flows with the same sender and the same bottleneck share the sum of their rates by
//! priority, instead of competing. Source: RFC 8699, sections 5.2 and 5.3.1 (active flow state exchange).

use std::time::Instant;

use super::{CongestionController, RATE_MIN, Report, within_limits};

/// Flows that share one bottleneck.
#[derive(Debug, Default)]
pub struct Coupled {
    flows: Vec<Flow>,
    /// Sum of the rates that the controllers have calculated, in bit/s (S_CR).
    sum: f64,
    next_id: u64,
}

/// Flow of a [`Coupled`] group. Numbers of removed flows are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId(u64);

#[derive(Debug)]
struct Flow {
    id: FlowId,
    priority: f64,
    /// Highest rate in bit/s that the flow can use (DR).
    desired: f64,
    /// Assigned rate in bit/s (FSE_R).
    rate: f64,
    controller: Box<dyn CongestionController>,
}

/// Limits of a priority.
const PRIORITY_MIN: f64 = 0.01;
const PRIORITY_MAX: f64 = 100.0;

impl Coupled {
    /// Adds a flow. `priority`: its weight, from 0.01 to 100; 1 is usual. `desired_bits_per_s`: the highest rate that
    /// the flow can use.
    pub fn add(&mut self, controller: Box<dyn CongestionController>, priority: f64, desired_bits_per_s: f64) -> FlowId {
        let id = FlowId(self.next_id);
        self.next_id += 1;
        let rate = controller.bits_per_s() as f64;
        let (priority, desired) = (weight(priority), within_limits(desired_bits_per_s));
        self.flows.push(Flow { id, priority, desired, rate, controller });
        self.sum += rate;
        self.distribute();
        id
    }

    /// Removes a flow. The others take over its rate, because the path still carries the sum.
    pub fn remove(&mut self, id: FlowId) -> Option<Box<dyn CongestionController>> {
        let index = self.flows.iter().position(|flow| flow.id == id)?;
        let flow = self.flows.remove(index);
        if self.flows.is_empty() {
            self.sum = 0.0;
        }
        self.distribute();
        Some(flow.controller)
    }

    /// Changes the priority and the highest usable rate of a flow. An unknown flow is ignored.
    pub fn configure(&mut self, id: FlowId, priority: f64, desired_bits_per_s: f64) {
        let Some(flow) = self.flows.iter_mut().find(|flow| flow.id == id) else { return };
        (flow.priority, flow.desired) = (weight(priority), within_limits(desired_bits_per_s));
        self.distribute();
    }

    /// Processes a report of one flow, and assigns new rates to all of them. An unknown flow is ignored.
    pub fn handle_report(&mut self, id: FlowId, report: &Report<'_>) {
        self.update(id, |controller| controller.handle_report(report));
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        let ids: Vec<FlowId> = self.flows.iter().map(|flow| flow.id).collect();
        for id in ids {
            self.update(id, |controller| controller.handle_timeout(now));
        }
    }

    /// Returns the assigned rate of a flow in bit/s. `None`: the flow is unknown.
    pub fn bits_per_s(&self, id: FlowId) -> Option<u64> {
        self.flow(id).map(|flow| flow.rate as u64)
    }

    /// Returns the controller of a flow, for its statistics.
    pub fn controller(&self, id: FlowId) -> Option<&dyn CongestionController> {
        self.flow(id).map(|flow| &*flow.controller)
    }

    fn flow(&self, id: FlowId) -> Option<&Flow> {
        self.flows.iter().find(|flow| flow.id == id)
    }

    fn update(&mut self, id: FlowId, run: impl FnOnce(&mut dyn CongestionController)) {
        let Some(flow) = self.flows.iter_mut().find(|flow| flow.id == id) else { return };
        let before = flow.controller.bits_per_s();
        run(&mut *flow.controller);
        let after = flow.controller.bits_per_s();
        if after == before {
            return;
        }
        // The controller started from the assigned rate, so the difference is what it has learned.
        self.sum += after as f64 - before as f64;
        self.distribute();
    }

    /// Distributes the sum by priority. A flow gets at most its desired rate; the rest goes to the others.
    fn distribute(&mut self) {
        let desired_sum = self.flows.iter().map(|flow| flow.desired).sum::<f64>();
        let least = RATE_MIN * self.flows.len() as f64;
        self.sum = if self.flows.is_empty() { 0.0 } else { self.sum.clamp(least, desired_sum.max(least)) };
        let (mut left, mut priorities) = (self.sum, self.flows.iter().map(|flow| flow.priority).sum::<f64>());
        let mut open: Vec<usize> = (0..self.flows.len()).collect();
        loop {
            let share = if priorities > 0.0 { left / priorities } else { 0.0 };
            let full = open.iter().position(|index| share * self.flows[*index].priority >= self.flows[*index].desired);
            let Some(position) = full else {
                for index in open {
                    let flow = &mut self.flows[index];
                    flow.assign(share * flow.priority);
                }
                return;
            };
            let flow = &mut self.flows[open.swap_remove(position)];
            left = (left - flow.desired).max(0.0);
            priorities -= flow.priority;
            flow.assign(flow.desired);
        }
    }
}

/// Returns a priority within its limits.
fn weight(priority: f64) -> f64 {
    if priority.is_nan() { PRIORITY_MIN } else { priority.clamp(PRIORITY_MIN, PRIORITY_MAX) }
}

impl Flow {
    fn assign(&mut self, bits_per_s: f64) {
        self.rate = bits_per_s.max(RATE_MIN);
        self.controller.set_bits_per_s(self.rate);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::congestion::Algorithm;

    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn start() -> Instant {
        Instant::now()
    }

    /// A group with flows of these rates, priorities and desired rates.
    fn coupled(flows: &[(f64, f64, f64)]) -> (Coupled, Vec<FlowId>, Instant) {
        let (mut coupled, now) = (Coupled::default(), start());
        let add = |(rate, priority, desired): &(f64, f64, f64)| {
            coupled.add(Algorithm::Rrtcc(Default::default()).controller(*rate, now), *priority, *desired)
        };
        let ids = flows.iter().map(add).collect();
        (coupled, ids, now)
    }

    fn rates(coupled: &Coupled, ids: &[FlowId]) -> Vec<u64> {
        ids.iter().map(|id| coupled.bits_per_s(*id).unwrap()).collect()
    }

    #[test]
    fn sum_is_shared_by_priority() {
        let (coupled, ids, _) = coupled(&[(2e6, 1.0, 1e9), (1e6, 1.0, 1e9), (1e6, 2.0, 1e9)]);
        assert_eq!(rates(&coupled, &ids), [1_000_000, 1_000_000, 2_000_000]);
        for id in &ids {
            assert_eq!(coupled.controller(*id).map(|flow| flow.bits_per_s()), coupled.bits_per_s(*id));
        }
    }

    #[test]
    fn rest_of_a_limited_flow_goes_to_the_others() {
        let (mut coupled, ids, _) = coupled(&[(1e6, 1.0, 2e5), (1e6, 1.0, 1e9), (1e6, 3.0, 1e9)]);
        // The first flow brings only what it can use.
        assert_eq!(rates(&coupled, &ids), [200_000, 500_000, 1_500_000]);
        coupled.configure(ids[2], 1.0, 1.2e6);
        assert_eq!(rates(&coupled, &ids), [200_000, 1_000_000, 1_000_000]);
        // Together they can use less than the sum, so the sum falls.
        coupled.configure(ids[1], 1.0, 5e5);
        assert_eq!(rates(&coupled, &ids), [200_000, 500_000, 1_200_000]);
        assert_eq!(coupled.sum, 1.9e6);
    }

    #[test]
    fn report_of_one_flow_changes_all() {
        let (mut coupled, ids, now) = coupled(&[(1e6, 1.0, 1e9), (1e6, 1.0, 1e9)]);
        let now = now + Duration::from_secs(1);
        let rtt = Duration::from_millis(100);
        let report = Report { now, arrivals: &[], lost: 40, covered: 100, rtt, remb_bits_per_s: None };
        coupled.handle_report(ids[0], &report);
        assert_eq!(rates(&coupled, &ids), [900_000, 900_000], "the loss of 200 kbit/s is shared");
        coupled.handle_timeout(now + Duration::from_secs(10));
        assert!(rates(&coupled, &ids).iter().all(|rate| *rate < 600_000));
    }

    #[test]
    fn rate_of_a_removed_flow_stays_in_the_group() {
        let (mut coupled, ids, _) = coupled(&[(1e6, 1.0, 1e9), (1e6, 1.0, 1e9)]);
        assert!(coupled.remove(ids[0]).is_some() && coupled.remove(ids[0]).is_none());
        assert_eq!((coupled.bits_per_s(ids[0]), coupled.bits_per_s(ids[1])), (None, Some(2_000_000)));
        coupled.remove(ids[1]);
        assert_eq!(coupled.sum, 0.0);
    }

    #[test]
    fn unknown_flow_and_invalid_weights_are_harmless() {
        let (mut coupled, ids, now) = coupled(&[(1e6, f64::NAN, f64::NAN), (1e6, -1.0, f64::INFINITY)]);
        let other = FlowId(99);
        let rtt = Duration::ZERO;
        coupled
            .handle_report(other, &Report { now, arrivals: &[], lost: 9, covered: 9, rtt, remb_bits_per_s: Some(0) });
        coupled.configure(other, 1.0, 1.0);
        assert_eq!(coupled.bits_per_s(other), None);
        assert_eq!(rates(&coupled, &ids), [RATE_MIN as u64, 1_000_000]);
    }
}
