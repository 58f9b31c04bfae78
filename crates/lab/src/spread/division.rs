//! Division of a load among nodes.

use anyhow::ensure;

use crate::load::{Plan, Rate, Shape};

/// Maximum number of nodes, and of generators.
pub const NODES_MAX: usize = 64;

/// Number of clients of each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    clients: Vec<usize>,
}

impl Division {
    /// Divides the clients of a plan evenly among as few nodes as possible. `connections_max`: of one node.
    ///
    /// Errors: the clients of this shape share their messages; a client alone has more connections; too many nodes.
    pub fn of(plan: &Plan, connections_max: u64) -> anyhow::Result<Self> {
        let is_divisible = matches!(plan.shape, Shape::Pairs | Shape::PingPong | Shape::Idle);
        ensure!(is_divisible, "connections_per_node: only pairs, ping-pong and idle clients can be on separate nodes");
        let each = 1 + plan.streams().div_ceil(plan.clients.max(1));
        let clients_max = usize::try_from(connections_max)? / each;
        ensure!(clients_max > 0, "connections_per_node: {connections_max}; one client has {each} connections");
        let nodes = plan.clients.div_ceil(clients_max).max(1);
        ensure!(nodes <= NODES_MAX, "{} clients need {nodes} nodes; the maximum is {NODES_MAX}", plan.clients);
        let (even, more) = (plan.clients / nodes, plan.clients % nodes);
        Ok(Self { clients: (0..nodes).map(|node| even + usize::from(node < more)).collect() })
    }

    pub fn nodes(&self) -> usize {
        self.clients.len()
    }

    /// Returns the plan of each generator: its share of the clients, of the rate and of the ramp.
    pub fn plans(&self, plan: &Plan) -> Vec<Plan> {
        let one = |(node, clients): (usize, &usize)| {
            let share = *clients as f64 / plan.clients as f64;
            let rate = match plan.rate {
                Rate::Open { per_s, arrivals } => Rate::Open { per_s: per_s * share, arrivals },
                Rate::Closed { in_flight } => Rate::Closed { in_flight },
            };
            Plan {
                clients: *clients,
                rate,
                ramp_per_s: (plan.ramp_per_s * share).max(1.0),
                channel: format!("{}-{node}", plan.channel),
                seed: plan.seed.wrapping_add(node as u64),
                ..plan.clone()
            }
        };
        self.clients.iter().enumerate().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Arrivals;

    fn plan(shape: Shape, clients: usize) -> Plan {
        let rate = Rate::Open { per_s: clients as f64 / 5.0, arrivals: Arrivals::Even };
        Plan { shape, clients, rate, ramp_per_s: 8000.0, ..Plan::default() }
    }

    #[test]
    fn cars_need_two_connections_each() {
        let nodes = |clients| Division::of(&plan(Shape::Pairs, clients), 19_800).unwrap().nodes();
        assert_eq!([4000, 5000, 15_000, 50_000, 100_000].map(nodes), [1, 1, 2, 6, 11]);
        assert_eq!(Division::of(&plan(Shape::Idle, 100_000), 19_800).unwrap().nodes(), 6);
    }

    #[test]
    fn shares_of_a_plan_add_up() {
        let whole = plan(Shape::Pairs, 100_000);
        let plans = Division::of(&whole, 19_800).unwrap().plans(&whole);
        let rate = |plan: &Plan| match plan.rate {
            Rate::Open { per_s, .. } => per_s,
            Rate::Closed { .. } => panic!("it is open"),
        };
        assert_eq!(plans.iter().map(|plan| plan.clients).sum::<usize>(), 100_000);
        assert!((plans.iter().map(rate).sum::<f64>() - 20_000.0).abs() < 1e-6);
        assert!((plans.iter().map(|plan| plan.ramp_per_s).sum::<f64>() - 8000.0).abs() < 1e-6);
        assert!(plans.iter().all(|plan| plan.clients + plan.streams() <= 19_800 && plan.check().is_ok()));
        assert_ne!((&plans[0].channel, plans[0].seed), (&plans[1].channel, plans[1].seed));
    }

    #[test]
    fn indivisible_loads_are_refused() {
        for (plan, most, why) in [
            (plan(Shape::Broadcast, 10), 100, "separate nodes"),
            (plan(Shape::Chat, 10), 100, "separate nodes"),
            (plan(Shape::Pairs, 10), 1, "has 2 connections"),
            (plan(Shape::Pairs, 1000), 10, "200 nodes"),
        ] {
            let error = Division::of(&plan, most).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
