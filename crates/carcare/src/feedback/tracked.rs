//! A car that is followed: its state, and which of its records are taken.

use millrace_driving::{Car, Drive, Event, Observed, Sample};
use millrace_protocol::{Position, Publication};
use tokio::time::Instant;

use super::rules::Rules;

/// A car that is followed.
pub struct Tracked {
    pub car: Car,
    /// Position of the last record that the car contains.
    pub at: Position,
    /// Position of the stored entry; `None` before the first write.
    pub entry: Option<Position>,
    /// Since when the car has changes that are not stored.
    pub changed: Option<Instant>,
    /// Records up to this one have published their events before this node took over.
    pub published: Option<Position>,
    /// Time of the newest record, and when it arrived: the clock of the device.
    clock: Option<(u64, Instant)>,
}

/// Position of a record relative to the last one that a car contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Known,
    Next,
    /// Records between the two are missing.
    Later,
}

impl Tracked {
    pub fn new(car: Car, at: Position, entry: Option<Position>) -> Self {
        // A car that has fallen silent before this node follows it ends its drive, too.
        let clock = car.current_drive().map(|drive| (drive.end, Instant::now()));
        Self { car, at, entry, changed: None, published: None, clock }
    }

    pub fn place_of(&self, position: Position) -> Place {
        match position.offset.checked_sub(self.at.offset) {
            _ if position.epoch != self.at.epoch => Place::Next,
            None | Some(0) => Place::Known,
            Some(1) => Place::Next,
            Some(_) => Place::Later,
        }
    }

    /// Takes the next record. Returns its consequences; none if they were published before.
    pub fn take(
        &mut self,
        id: &str,
        position: Position,
        record: &Publication,
        rules: &Rules,
        now: Instant,
    ) -> Observed {
        self.at = position;
        self.changed.get_or_insert(now);
        // A message that is no record is none of this service's; the client was answered when it published.
        let Ok(sample) = Sample::parse(record.data()) else { return Observed::default() };
        self.clock = Some((sample.time_ms, now));
        let geofences = rules.geofences(id);
        let observed = self.car.observe(&sample, record.time_ms, rules.thresholds(id), &geofences);
        let is_published = self
            .published
            .is_some_and(|published| published.epoch == position.epoch && position.offset < published.offset);
        if is_published { Observed { events: Vec::new(), ..observed } } else { observed }
    }

    /// Ends the drive of a device that is silent.
    pub fn end_if_silent(&mut self, now: Instant) -> Option<Drive> {
        let (time_ms, arrived) = self.clock?;
        let ended = self.car.end_if_silent(time_ms + now.duration_since(arrived).as_millis() as u64)?;
        self.changed.get_or_insert(now);
        Some(ended)
    }
}

/// Returns true for an event that belongs into the list of alerts.
pub fn is_alert(event: &Event) -> bool {
    use millrace_driving::{Kind::*, Severity};
    match event.kind {
        Overheating | OilPressure | LowFuel | TroubleCode | Lamp | Accident | GeofenceEnter | GeofenceExit => true,
        _ => event.severity == Severity::Severe,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_protocol::Epoch;

    #[test]
    fn place_is_known_next_or_later() {
        let at = |epoch, offset| Position { epoch: Epoch(epoch), offset };
        let tracked = Tracked::new(Car::default(), at(1, 10), None);
        assert_eq!(tracked.place_of(at(1, 10)), Place::Known);
        assert_eq!(tracked.place_of(at(1, 3)), Place::Known);
        assert_eq!(tracked.place_of(at(1, 11)), Place::Next);
        assert_eq!(tracked.place_of(at(1, 12)), Place::Later);
        assert_eq!(tracked.place_of(at(2, 1)), Place::Next, "the log has begun anew");
    }
}
