use std::time::Duration;

use millrace_link::{Cause, CodelConfig, Config, Direction, Link, PipeConfig, QueueLimit, Trace, Traces};

use crate::support::{Numbered, at_ms, drain, link_up, ms, poll, send_up};

fn rate(rate: &str) -> PipeConfig {
    PipeConfig { rate: Some(rate.parse().expect("a rate")), ..PipeConfig::default() }
}

#[test]
fn overloaded_link_delivers_exactly_its_rate() {
    for (text, bits_per_s) in [("0.5Mbit/s", 0.5e6), ("1Mbit/s", 1e6), ("7Mbit/s", 7e6), ("100Mbit/s", 100e6)] {
        let mut link = link_up(rate(text));
        // 130 % of the rate for 20,000 packets.
        let interval = Duration::from_secs_f64(1200.0 * 8.0 / (1.3 * bits_per_s));
        let arrived = send_up(&mut link, 20_000, 1200, interval);
        let time = arrived.last().expect("packets").0.since(arrived[0].0);
        let bits = (arrived.len() - 1) as f64 * 1200.0 * 8.0;
        let found = bits / time.as_secs_f64();
        assert!((found / bits_per_s - 1.0).abs() < 1e-6, "{text}: {found}");
        let counters = link.pipe(Direction::Up).counters();
        assert!(counters.dropped(Cause::QueueFull) > 400 && counters.dropped(Cause::Channel) == 0);
        assert_eq!(counters.delivered + counters.dropped(Cause::QueueFull), 20_000);
    }
}

#[test]
fn queue_of_one_second_at_1_mbit_per_second_has_83_packets() {
    let queue = Some(QueueLimit::Time(Duration::from_secs(1)));
    let mut link = link_up(PipeConfig { queue, ..rate("1Mbit/s") });
    let arrived = send_up(&mut link, 200, 1500, Duration::ZERO);
    assert_eq!(arrived.len(), 83, "the packet that is being sent counts");
    assert_eq!(ms(arrived[82].0), 83.0 * 12.0);
    assert_eq!(link.pipe(Direction::Up).counters().queue_packets_max, 83);
}

#[test]
fn queue_can_be_limited_in_bytes() {
    let mut link = link_up(PipeConfig { queue: Some(QueueLimit::Bytes(4500)), ..rate("1Mbit/s") });
    assert_eq!(send_up(&mut link, 10, 1500, Duration::ZERO).len(), 3);
    let mut link = link_up(PipeConfig { queue: Some(QueueLimit::Bytes(4500)), ..rate("1Mbit/s") });
    assert_eq!(send_up(&mut link, 100, 100, Duration::ZERO).len(), 45);
}

#[test]
fn codel_keeps_the_queue_short_where_droptail_fills_it() {
    let queue = Some(QueueLimit::Packets(1000));
    let config = PipeConfig { queue, ..rate("10Mbit/s") };
    let interval = Duration::from_micros(1150);
    let mut droptail = link_up(config.clone());
    send_up(&mut droptail, 20_000, 1500, interval);
    let mut codel = link_up(PipeConfig { codel: Some(CodelConfig::default()), ..config });
    let arrived = send_up(&mut codel, 20_000, 1500, interval);
    let delay = |link: &Link<Numbered>| link.pipe(Direction::Up).counters().queue_delay_max;
    assert!(delay(&droptail) > Duration::from_millis(700), "{:?}", delay(&droptail));
    assert!(delay(&codel) < Duration::from_millis(200), "{:?}", delay(&codel));
    let counters = codel.pipe(Direction::Up).counters();
    assert!(counters.dropped(Cause::QueueDelay) > 500 && counters.dropped(Cause::QueueFull) == 0, "{counters:?}");
    // Dropping uses no capacity: the link stays busy.
    let last = arrived.last().expect("packets").0;
    assert!(arrived.len() as f64 * 1.2 > ms(last) * 0.98, "{} packets in {} ms", arrived.len(), ms(last));
}

#[test]
fn packets_leave_at_the_opportunities_of_a_trace() {
    let up = PipeConfig { trace: Some("test".into()), queue: Some(QueueLimit::Packets(100)), ..PipeConfig::default() };
    let trace = Trace::from_mahimahi("10\n20\n20\n50\n").expect("a trace");
    let traces = Traces { up: Some(trace), down: None };
    let mut link = Link::new(Config { up, ..Config::default() }, &traces, 1).expect("a link");
    // Two packets share an opportunity, and one needs two.
    for (number, bytes) in [700, 700, 1500, 1500, 1500, 1500].into_iter().enumerate() {
        link.handle_input(Direction::Up, Numbered::new(number as u64, bytes), at_ms(0.0));
    }
    let times: Vec<f64> = drain(&mut link).iter().map(|(time, _)| ms(*time)).collect();
    assert_eq!(times, [10.0, 10.0, 20.0, 20.0, 50.0, 60.0]);
    // The unused part of an opportunity is lost; the next packet waits for the next one.
    link.handle_input(Direction::Up, Numbered::new(9, 100), at_ms(60.5));
    assert_eq!(drain(&mut link)[0].0, at_ms(70.0));
}

#[test]
fn rate_changes_while_packets_wait() {
    let mut link = link_up(rate("1Mbit/s"));
    for number in 0..4 {
        link.handle_input(Direction::Up, Numbered::new(number, 1500), at_ms(0.0));
    }
    assert_eq!(poll(&mut link, at_ms(12.0)).len(), 1);
    let faster = Config { up: rate("12Mbit/s"), ..Config::default() };
    link.configure(faster, &Traces::default(), at_ms(13.0)).expect("a good configuration");
    // The second packet is being sent at the old rate.
    let times: Vec<f64> = drain(&mut link).iter().map(|(time, _)| ms(*time)).collect();
    assert_eq!(times, [24.0, 25.0, 26.0]);
    let bad = Config { up: PipeConfig { trace: Some("a".into()), ..PipeConfig::default() }, ..Config::default() };
    assert!(link.configure(bad, &Traces::default(), at_ms(30.0)).is_err());
    assert_eq!(link.config().up, rate("12Mbit/s"), "a bad configuration changes nothing");
}
