//! Energy part of the wire cost report: joules per day of one client on each radio, by transport and heartbeat
//! interval.

use crate::{
    energy::{
        EnergyUse, Radios,
        day::{Cost, DAY_S, DeliveryMethod, Drive, day, packets, total_bytes},
        lasts,
    },
    targets::{OVER_TCP, Transport},
    wire_cost::{EnergyLine, Side, Unit, WireCostReport},
};

/// Heartbeat intervals in seconds. 25 is Millrace's default and 300 is Somogyi's. 450 is below the shortest time
/// after which the thesis saw an LTE network forget a connection (8 min).
const HEARTBEATS_S: [f64; 5] = [25.0, 60.0, 300.0, 450.0, 1800.0];
const HOLD_S: f64 = 30.0;
const POLLS_S: [f64; 2] = [5.0, 60.0];
/// Power of Karadogan's phone without the part that the thesis measured (ERRATA E-K13, value KV31). The screen
/// and the profiler are on.
const REST_OF_THE_PHONE_W: f64 = 1.195;

const DAYS: [(&str, Drive); 2] = [
    ("700 messages in an hour", Drive { messages: 700, every_s: 5.0 }),
    ("no message", Drive { messages: 0, every_s: 5.0 }),
];

pub fn add(wire_cost: &mut WireCostReport, radios: &Radios, battery_wh: f64) {
    let mut energy = Vec::new();
    for radio in &radios.radio {
        for (what, drive) in DAYS {
            for (transport, method, heartbeat_s) in delivery_methods(drive) {
                let cost = |unit| {
                    let line = wire_cost.line(transport.name(), Side::Deliver, unit)?;
                    let (up_bytes, down_bytes) = (line.measured.up.total(), line.measured.down.total());
                    Some(Cost { up_bytes, down_bytes })
                };
                let [Some(connection), Some(message), Some(silence)] =
                    [Unit::Connection, Unit::Message, Unit::Silence].map(cost)
                else {
                    continue;
                };
                let events = day(method, drive, connection, message, silence);
                let spent = radio.spend(packets(&events), DAY_S);
                let names = radio.state.iter().map(|state| state.name.as_str());
                energy.push(EnergyLine {
                    radio: radio.name.clone(),
                    transport: transport.to_string(),
                    day: what.into(),
                    heartbeat_s,
                    bytes_per_day: total_bytes(&events),
                    joules_per_day: spent.total_j(),
                    promotions: spent.promotions,
                    battery_percent_per_day: spent.total_j() / (battery_wh * 3600.0) * 100.0,
                    states: states(names, &spent),
                });
            }
        }
    }
    let first = radios.radio.first().map_or("", |radio| &radio.name);
    let chosen = energy.iter().filter(|line| line.radio == first && line.day == DAYS[0].0);
    let days: Vec<_> = chosen
        .filter(|line| matches!(line.transport.as_str(), "websocket" | "long-polling" | "polling"))
        .map(|line| (format!("{first}, {}, every {:.0} s", line.transport, line.heartbeat_s), line.joules_per_day))
        .collect();
    wire_cost.batteries = lasts(battery_wh, REST_OF_THE_PHONE_W, &days);
    wire_cost.energy = energy;
    wire_cost.notes.push(format!("Percent of a battery of {battery_wh} Wh, by the radio alone."));
}

/// Returns the intervals with which each transport is compared. The poll interval is at most the message interval, so
/// that each response carries at most one message.
fn delivery_methods(drive: Drive) -> Vec<(Transport, DeliveryMethod, f64)> {
    let mut ways = Vec::new();
    for transport in OVER_TCP.iter().copied() {
        match transport {
            Transport::Polling => {
                let polls = POLLS_S.into_iter().filter(|every_s| drive.messages == 0 || *every_s <= drive.every_s);
                ways.extend(polls.map(|every_s| (transport, DeliveryMethod::Poll { every_s }, every_s)));
            }
            Transport::LongPolling => ways.push((transport, DeliveryMethod::Hold { hold_s: HOLD_S }, HOLD_S)),
            Transport::WebSocket | Transport::Session | Transport::DataChannel | Transport::Mqtt => {
                ways.extend(
                    HEARTBEATS_S
                        .map(|heartbeat_s| (transport, DeliveryMethod::PushAndAsk { heartbeat_s }, heartbeat_s)),
                );
            }
            Transport::Sse | Transport::Stream => {
                ways.extend(
                    HEARTBEATS_S.map(|heartbeat_s| (transport, DeliveryMethod::Push { heartbeat_s }, heartbeat_s)),
                );
            }
        }
    }
    ways
}

fn states<'a>(names: impl Iterator<Item = &'a str>, spent: &EnergyUse) -> Vec<(String, f64)> {
    let states = names.zip(&spent.states_j).map(|(name, joules)| (name.to_owned(), *joules));
    states.chain([("promotion".to_owned(), spent.promotion_j), ("transfer".to_owned(), spent.transfer_j)]).collect()
}
