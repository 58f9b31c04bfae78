//! Streets of the town, with their class and nodes.

/// Index of a point of the street graph.
pub type Node = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Street,
    Avenue,
    Bridge,
    /// One-way, counterclockwise.
    Roundabout,
}

impl Class {
    /// Returns the speed limit in meters per second: 40 km/h on streets, 50 on avenues and bridges, 30 on the
    /// roundabout.
    pub fn limit_mps(self) -> f64 {
        match self {
            Self::Street => 40.0 / 3.6,
            Self::Avenue | Self::Bridge => 50.0 / 3.6,
            Self::Roundabout => 30.0 / 3.6,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Street {
    pub class: Class,
    pub name: String,
    pub nodes: Vec<Node>,
}
