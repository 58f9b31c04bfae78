use std::time::Duration;

/// Limits of a room, and the capabilities of its server.
#[derive(Clone, Debug)]
pub struct Config {
    pub participants_max: usize,
    /// Maximum number of participants where every participant connects to every other one.
    pub mesh_max: usize,
    /// Silent peer timeout: a participant that sends neither a signal nor a report for this long is removed.
    pub silent_timeout: Duration,
    /// Time for which the seat of a participant whose page reloads is held.
    pub away_timeout: Duration,
    /// Maximum number of signals and reports per second of one participant. 0 means no limit.
    pub signals_per_s: u32,
    /// Maximum number of children of one participant in a tree.
    pub children_max: usize,
    /// Silence after which a parent is taken out of the tree, if most of its children also have lost it. Clients
    /// report every 5 s.
    pub suspect_timeout: Duration,
    /// Time for which a room with the topology `auto` must have at most two participants before it returns to a
    /// mesh.
    pub mesh_return_delay: Duration,
    /// Whether the server has an SFU, so that participants can connect to [`crate::SWITCH`].
    pub has_switch: bool,
    /// Whether the server can mix audio.
    pub has_mixer: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            participants_max: 100,
            mesh_max: 12,
            silent_timeout: Duration::from_secs(20),
            away_timeout: Duration::from_secs(15),
            signals_per_s: 50,
            children_max: 3,
            suspect_timeout: Duration::from_secs(7),
            mesh_return_delay: Duration::from_secs(10),
            has_switch: false,
            has_mixer: false,
        }
    }
}
