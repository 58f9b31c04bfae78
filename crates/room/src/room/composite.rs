//! Layout of the composite video of a room, a part of its state.

use serde::Serialize;

use super::Room;

/// Composite video: its size in pixels, and who is shown in which part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Composite {
    pub width: usize,
    pub height: usize,
    pub cells: Vec<Cell>,
}

/// Part of the composite video that shows a participant, in pixels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// Id of a participant, or name of a WHIP publisher.
    pub participant: String,
    pub x: usize,
    pub y: usize,
    pub width: usize,
    pub height: usize,
}

impl Room {
    /// Sets the layout of the composite video. Returns whether the layout has changed.
    pub fn set_composite(&mut self, composite: Composite) -> bool {
        let is_changed = self.composite.as_ref() != Some(&composite);
        if is_changed {
            self.composite = Some(composite);
            self.changed();
        }
        is_changed
    }
}
