use std::time::Duration;

use millrace_link::{Cause, Config, Direction, Nat, OnIdle, PipeConfig, Radio, Repeated};

use crate::support::{Numbered, at_ms, drain, link};

fn nat(on_idle: OnIdle) -> Config {
    let pipe = PipeConfig { delay: Duration::from_millis(10), ..PipeConfig::default() };
    let nat = Some(Nat { idle: Duration::from_secs(60), on_idle });
    Config { up: pipe.clone(), down: pipe, nat, ..Config::default() }
}

#[test]
fn forgotten_connection_is_swallowed() {
    let mut link = link(nat(OnIdle::Swallow));
    link.handle_input(Direction::Up, Numbered::opening(0, 60), at_ms(0.0));
    link.handle_input(Direction::Down, Numbered::new(1, 100), at_ms(59_000.0));
    link.handle_input(Direction::Down, Numbered::new(2, 100), at_ms(119_000.0));
    let numbers: Vec<u64> = drain(&mut link).into_iter().map(|(_, packet)| packet.number).collect();
    assert_eq!(numbers, [0, 1]);
    assert_eq!(link.pipe(Direction::Down).counters().dropped(Cause::Nat), 1);
}

#[test]
fn forgotten_connection_can_be_reset() {
    let mut link = link(nat(OnIdle::Reset));
    link.handle_input(Direction::Up, Numbered::opening(0, 60), at_ms(0.0));
    drain(&mut link);
    link.handle_input(Direction::Down, Numbered::new(1, 100), at_ms(60_000.0));
    let arrived = link.poll_output(at_ms(60_010.0)).expect("a reset");
    assert_eq!((arrived.0, arrived.2.is_reset), (Direction::Up, true), "its sender gets it");
}

#[test]
fn outage_drops_what_arrives_and_keeps_what_is_on_the_link() {
    let outage = Some(Repeated { at: Duration::from_millis(5), lasts: Duration::from_millis(10), every: None });
    let up = PipeConfig { delay: Duration::from_millis(20), ..PipeConfig::default() };
    let mut link = link(Config { up, outage, ..Config::default() });
    for (number, time) in [0.0, 5.0, 14.0, 15.0].into_iter().enumerate() {
        link.handle_input(Direction::Up, Numbered::new(number as u64, 100), at_ms(time));
    }
    let numbers: Vec<u64> = drain(&mut link).into_iter().map(|(_, packet)| packet.number).collect();
    assert_eq!(numbers, [0, 3]);
    assert_eq!(link.pipe(Direction::Up).counters().dropped(Cause::Outage), 2);
}

#[test]
fn idle_radio_delays_both_directions_until_it_is_active() {
    let radio = Radio { promotion: Duration::from_millis(260), active_for: Duration::from_secs(10), middle: None };
    let mut link = link(Config { radio: Some(radio), ..Config::default() });
    link.handle_input(Direction::Down, Numbered::new(0, 100), at_ms(0.0));
    link.handle_input(Direction::Up, Numbered::new(1, 100), at_ms(100.0));
    link.handle_input(Direction::Up, Numbered::new(2, 100), at_ms(300.0));
    let times: Vec<u64> = drain(&mut link).iter().map(|(time, _)| time.ns() / 1_000_000).collect();
    assert_eq!(times, [260, 260, 300]);
    assert_eq!(link.shared().promotions(), 1);
}
