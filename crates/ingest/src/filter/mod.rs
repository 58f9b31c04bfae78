//! Decides for each report of a device whether it is live, late, a duplicate, or nothing that a reader should see.
//!
//! The filter has no clock and no I/O: times are inputs. Its memory is bounded by the number of devices and of
//! remembered points. Per device:
//!
//! ```text
//!            first position
//!   Unknown ───────────────► Settled ── a position too far away for the time ──► Suspect(1)
//!                               ▲  ▲                                              │   │
//!                               │  └──────── a position near the settled one ─────┘   │ positions near the suspect
//!                               └───────────── CONFIRMATIONS of them in a row ────────┘ one: Suspect(2), ..
//! ```
//!
//! The positions of suspects are removed from their records. So one wrong fix never moves a car, and a car that was
//! really carried elsewhere is shown there after a few fixes.

mod place;
mod seen;

use std::collections::HashMap;

use crate::reading::Reading;
use place::Place;
use seen::Seen;

/// Time that a point may be older than the newest of its device and still be live.
pub const LATE_MS: u64 = 5_000;
/// Time that a point may be ahead of the server's clock. Later ones would make all further points late.
pub const FUTURE_MS: u64 = 2 * 60 * 1000;
/// Number of positions in a row at another place after which the device counts as carried there.
const CONFIRMATIONS: u32 = 3;

/// Decision about a report.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The record is published on the channel of live records. [`Filter::accept`] must be called once it is stored.
    Live(Acceptance),
    /// The record is published on the channel of late records, and [`Filter::accept`] is called in the same way.
    Late(Acceptance),
    /// The point was accepted before.
    Duplicate,
    Dropped(Reason),
}

/// Reason why a report is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its time is more than [`FUTURE_MS`] ahead of the server's.
    Future,
    /// Its position is too far from the one before, and it has no other value.
    Jump,
    /// It has no position, or 0,0, and no other value.
    Empty,
}

/// State that the filter keeps once a report is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Acceptance {
    fingerprint: u64,
    /// New state of the device; `None` for a late point.
    state: Option<State>,
}

impl Acceptance {
    /// Returns the idempotency key of the publication, so that a point that two requests bring at the same time is
    /// stored once.
    pub fn key(&self) -> String {
        format!("ingest/{:016x}", self.fingerprint)
    }
}

/// State of one device; see the diagram of this module.
#[derive(Clone, Debug, Default, PartialEq)]
struct State {
    newest_ms: u64,
    settled: Option<Place>,
    suspect: Option<(Place, u32)>,
}

struct Device {
    state: State,
    /// Value of the counter when the device was used last.
    used: u64,
}

/// States of all devices.
pub struct Filter {
    devices: HashMap<Box<str>, Device>,
    devices_max: usize,
    uses: u64,
    seen: Seen,
}

impl Filter {
    /// Creates a filter that remembers at most `devices_max` devices and `points_max` points. Above, it forgets the
    /// devices whose reports are the oldest, and the oldest points.
    pub fn new(devices_max: usize, points_max: usize) -> Self {
        Self { devices: HashMap::new(), devices_max: devices_max.max(1), uses: 0, seen: Seen::new(points_max) }
    }

    /// Returns true if the filter remembers the device.
    pub fn knows(&self, device: &str) -> bool {
        self.devices.contains_key(device)
    }

    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// Remembers the newest stored record of a device, so that a restart does not make late points live.
    pub fn restore(&mut self, device: &str, time_ms: u64, position: Option<(f64, f64)>, now_ms: u64) {
        let newest_ms = time_ms.min(now_ms + FUTURE_MS);
        let settled = position.map(|(latitude, longitude)| Place { latitude, longitude, accuracy: 0.0, time_ms });
        self.store(device, State { newest_ms, settled, suspect: None });
    }

    /// Judges a report, and removes what is wrong from its reading. `now_ms` is the server's time.
    pub fn judge(&mut self, device: &str, time_ms: u64, reading: &mut Reading, now_ms: u64) -> Verdict {
        if time_ms > now_ms.saturating_add(FUTURE_MS) {
            return Verdict::Dropped(Reason::Future);
        }
        reading.remove_impossible_values();
        let fingerprint = seen::fingerprint(device, time_ms, reading);
        if self.seen.contains(fingerprint) {
            return Verdict::Duplicate;
        }
        if reading.is_empty() {
            return Verdict::Dropped(Reason::Empty);
        }
        let mut state = self.devices.get(device).map_or_else(State::default, |known| known.state.clone());
        if time_ms.saturating_add(LATE_MS) < state.newest_ms {
            return Verdict::Late(Acceptance { fingerprint, state: None });
        }
        state.newest_ms = state.newest_ms.max(time_ms);
        if let Some(place) = Place::of(reading, time_ms)
            && !state.accepts(place)
        {
            reading.clear_position();
            if reading.is_empty() {
                let newest_ms = self.devices.get(device).map_or(0, |known| known.state.newest_ms);
                self.store(device, State { newest_ms, ..state });
                // In a repeated batch the point would be late, and its wrong position would be published.
                self.seen.insert(fingerprint);
                return Verdict::Dropped(Reason::Jump);
            }
        }
        Verdict::Live(Acceptance { fingerprint, state: Some(state) })
    }

    /// Remembers a report that was stored. A report that could not be stored is judged again when it is repeated.
    pub fn accept(&mut self, device: &str, acceptance: Acceptance) {
        self.seen.insert(acceptance.fingerprint);
        if let Some(mut state) = acceptance.state {
            if let Some(known) = self.devices.get(device) {
                // Another request may have been stored meanwhile.
                state.newest_ms = state.newest_ms.max(known.state.newest_ms);
            }
            self.store(device, state);
        }
    }

    fn store(&mut self, device: &str, state: State) {
        self.uses += 1;
        let used = self.uses;
        if let Some(known) = self.devices.get_mut(device) {
            *known = Device { state, used };
            return;
        }
        if self.devices.len() >= self.devices_max {
            self.forget();
        }
        self.devices.insert(device.into(), Device { state, used });
    }

    /// Forgets the eighth of the devices that was used least recently, so that finding it costs little per device.
    fn forget(&mut self) {
        let mut uses: Vec<u64> = self.devices.values().map(|device| device.used).collect();
        let place = uses.len() / 8;
        let (_, limit, _) = uses.select_nth_unstable(place);
        let limit = *limit;
        self.devices.retain(|_, device| device.used > limit);
    }
}

impl State {
    /// Returns true if a position may be shown, and moves to the next state.
    fn accepts(&mut self, place: Place) -> bool {
        let Some(settled) = self.settled else {
            self.settled = Some(place);
            return true;
        };
        if settled.may_reach(&place) {
            if place.time_ms >= settled.time_ms {
                self.settled = Some(place);
            }
            self.suspect = None;
            return true;
        }
        let count = match self.suspect {
            Some((suspect, count)) if suspect.may_reach(&place) => count + 1,
            _ => 1,
        };
        if count >= CONFIRMATIONS {
            (self.settled, self.suspect) = (Some(place), None);
            return true;
        }
        self.suspect = Some((place, count));
        false
    }
}

#[cfg(test)]
mod tests;
