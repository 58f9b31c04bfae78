//! The filter in virtual time.

use super::*;

const NOW: u64 = 1_795_600_000_000;

/// A filter with its server's clock.
struct World {
    filter: Filter,
    now_ms: u64,
}

impl World {
    fn new() -> Self {
        Self { filter: Filter::new(100, 1000), now_ms: NOW }
    }

    /// Reports a position and returns a word for what became of it; the position is accepted if it is published.
    fn report(&mut self, device: &str, time_ms: u64, latitude: f64, longitude: f64) -> &'static str {
        let mut reading = Reading::from("test");
        reading.set_position(latitude, longitude);
        self.report_reading(device, time_ms, &mut reading)
    }

    fn report_reading(&mut self, device: &str, time_ms: u64, reading: &mut Reading) -> &'static str {
        match self.filter.judge(device, time_ms, reading, self.now_ms) {
            Verdict::Live(acceptance) => {
                self.filter.accept(device, acceptance);
                if reading.position().is_some() { "live" } else { "live without position" }
            }
            Verdict::Late(acceptance) => {
                self.filter.accept(device, acceptance);
                "late"
            }
            Verdict::Duplicate => "duplicate",
            Verdict::Dropped(Reason::Future) => "future",
            Verdict::Dropped(Reason::Jump) => "jump",
            Verdict::Dropped(Reason::Empty) => "empty",
        }
    }
}

#[test]
fn older_points_are_late_and_never_live() {
    let mut world = World::new();
    assert_eq!(world.report("a", NOW, 47.5, 19.0), "live");
    assert_eq!(world.report("a", NOW - LATE_MS, 47.5001, 19.0), "live", "within the bound");
    assert_eq!(world.report("a", NOW - LATE_MS - 1, 47.5, 19.0), "late");
    assert_eq!(world.report("a", NOW - 3_600_000, 40.0, 10.0), "late", "no jump: its time is another one");
    assert_eq!(world.report("b", NOW - 3_600_000, 40.0, 10.0), "live", "another device");
    assert_eq!(world.report("a", NOW + 1000, 47.5, 19.0), "live");
}

#[test]
fn clock_that_goes_back_makes_points_late_until_it_catches_up() {
    let mut world = World::new();
    assert_eq!(world.report("a", NOW, 47.5, 19.0), "live");
    for second in 0..5 {
        assert_eq!(world.report("a", NOW - 60_000 + second * 10_000, 47.5, 19.0), "late");
    }
    assert_eq!(world.report("a", NOW - 4_000, 47.5, 19.0), "live");
}

#[test]
fn points_of_the_future_do_not_silence_a_device() {
    let mut world = World::new();
    let year = 365 * 24 * 3_600_000;
    for ahead in [FUTURE_MS + 1, 5 * year, u64::MAX - NOW] {
        assert_eq!(world.report("a", NOW + ahead, 47.5, 19.0), "future");
    }
    assert_eq!(world.report("a", NOW, 47.5, 19.0), "live");
    assert_eq!(world.report("a", NOW + FUTURE_MS, 47.5, 19.0), "live", "a clock that is a little fast");
}

#[test]
fn repeated_batch_publishes_nothing_again() {
    let mut world = World::new();
    let batch: Vec<u64> = (0..60).map(|second| NOW - 60_000 + second * 1000).collect();
    let outcomes =
        |world: &mut World| -> Vec<_> { batch.iter().map(|at| world.report("a", *at, 47.5, 19.0)).collect() };
    assert_eq!(outcomes(&mut world), ["live"; 60]);
    assert_eq!(outcomes(&mut world), ["duplicate"; 60]);
    assert_eq!(world.report("a", NOW - 30_500, 47.5, 19.0), "late");
    assert_eq!(world.report("a", NOW - 30_500, 47.5, 19.0), "duplicate", "a late point, too");
}

#[test]
fn point_that_was_not_stored_is_judged_again() {
    let mut world = World::new();
    for _ in 0..3 {
        let mut reading = Reading::from("test");
        reading.set_position(47.5, 19.0);
        assert!(matches!(world.filter.judge("a", NOW, &mut reading, NOW), Verdict::Live(_)));
    }
    assert_eq!(world.report("a", NOW, 47.5, 19.0), "live");
    assert_eq!(world.report("a", NOW, 47.5, 19.0), "duplicate");
}

#[test]
fn position_at_the_origin_is_no_position() {
    let mut world = World::new();
    assert_eq!(world.report("a", NOW, 0.0, 0.0), "empty");
    assert_eq!(world.report("a", NOW, 47.5, 19.0), "live");
    let mut reading = Reading { rpm: Some(900.0), ..Reading::from("test") };
    reading.set_position(0.0, 0.0);
    assert_eq!(world.report_reading("a", NOW + 1000, &mut reading), "live without position");
    assert_eq!(reading.rpm, Some(900.0));
}

#[test]
fn single_jump_is_removed_and_the_car_goes_on() {
    let mut world = World::new();
    let outcomes: Vec<_> = (0..6u64)
        .map(|second| {
            let latitude = if second == 3 { 52.0 } else { 47.5 + second as f64 * 1e-4 };
            world.report("a", NOW + second * 1000, latitude, 19.0)
        })
        .collect();
    assert_eq!(outcomes, ["live", "live", "live", "jump", "live", "live"]);
}

#[test]
fn jump_in_a_repeated_batch_is_not_late() {
    let mut world = World::new();
    let mut report = |seconds: u64, latitude| world.report("a", NOW - 60_000 + seconds * 1000, latitude, 19.0);
    assert_eq!([report(0, 47.5), report(1, 52.0), report(30, 47.5)], ["live", "jump", "live"]);
    assert_eq!([report(0, 47.5), report(1, 52.0), report(30, 47.5)], ["duplicate"; 3]);
}

#[test]
fn alternating_jumps_are_never_believed() {
    let mut world = World::new();
    assert_eq!(world.report("a", NOW, 47.5, 19.0), "live");
    for second in (1..60).step_by(2) {
        assert_eq!(world.report("a", NOW + second * 1000, 52.0, 13.0), "jump");
        assert_eq!(world.report("a", NOW + second * 1000 + 1000, 47.5, 19.0), "live");
    }
}

#[test]
fn car_that_was_carried_elsewhere_is_believed_after_three_positions() {
    let mut world = World::new();
    assert_eq!(world.report("a", NOW, 47.5, 19.0), "live");
    let outcomes: Vec<_> = (1..=4).map(|second| world.report("a", NOW + second * 1000, 52.0, 13.0)).collect();
    assert_eq!(outcomes, ["jump", "jump", "live", "live"]);
    // After a day the distance is possible.
    world.now_ms += 86_400_000;
    assert_eq!(world.report("a", NOW + 86_400_000, 47.5, 19.0), "live");
}

#[test]
fn ten_thousand_devices_with_one_id_are_one_device() {
    let mut world = World::new();
    let mut shown = 0;
    for n in 0..10_000u64 {
        let (latitude, longitude) = ((n * 7919 % 160) as f64 - 79.5, (n * 104_729 % 340) as f64 - 169.5);
        shown += usize::from(world.report("one", NOW + n, latitude, longitude) == "live");
    }
    assert!(shown < 20, "a reader would see {shown} positions all over the world");
    assert_eq!(world.filter.devices(), 1);
}

#[test]
fn memory_is_bounded_for_any_number_of_ids() {
    let mut world = World::new();
    for n in 0..10_000u64 {
        world.report(&format!("car-{n}"), NOW, 47.5, 19.0);
        assert!(world.filter.devices() <= 100);
    }
    assert!(world.filter.knows("car-9999") && !world.filter.knows("car-0"));
    for n in 0..1000u64 {
        world.report("car-9999", NOW + n, 47.5, 19.0);
        world.report(&format!("other-{n}"), NOW, 47.5, 19.0);
    }
    assert!(world.filter.knows("car-9999"), "a device that reports is not forgotten");
}

#[test]
fn restored_device_knows_what_is_late() {
    let mut world = World::new();
    world.filter.restore("a", NOW, Some((47.5, 19.0)), NOW);
    assert_eq!(world.report("a", NOW - 60_000, 47.5, 19.0), "late");
    assert_eq!(world.report("a", NOW + 1000, 52.0, 13.0), "jump");
    world.filter.restore("b", u64::MAX, None, NOW);
    world.now_ms = NOW + FUTURE_MS;
    assert_eq!(world.report("b", NOW + FUTURE_MS, 47.5, 19.0), "live", "a stored time of the future is not believed");
}
