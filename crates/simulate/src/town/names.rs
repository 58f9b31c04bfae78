//! Names of streets and parks: trees, trades and landmarks.

use millrace_client::random::Random;

pub const PARKS: [&str; 8] = [
    "Botanic Garden",
    "River Park",
    "Willow Common",
    "Hill Park",
    "Rose Garden",
    "Orchard Green",
    "Meadow Park",
    "Fountain Green",
];

const FIRST: [&str; 64] = [
    "Acacia", "Alder", "Anchor", "Apple", "Ash", "Aspen", "Baker", "Barley", "Beech", "Bell", "Birch", "Brewer",
    "Brick", "Carp", "Cedar", "Chalk", "Cherry", "Chestnut", "Cider", "Clover", "Cooper", "Copper", "Crane", "Elder",
    "Elm", "Fern", "Ferry", "Fig", "Finch", "Forge", "Foundry", "Fuller", "Glazier", "Granary", "Hazel", "Heron",
    "Honey", "Hop", "Ivy", "Juniper", "Lark", "Laurel", "Lavender", "Lime", "Maple", "Mint", "Mulberry", "Oak",
    "Osier", "Pear", "Pine", "Plum", "Poplar", "Quince", "Rowan", "Saddler", "Sage", "Sluice", "Swan", "Tanner",
    "Thyme", "Walnut", "Weaver", "Wheel",
];
const SECOND: [&str; 4] = ["Street", "Lane", "Row", "Way"];

/// Source of street names. Each name is used once before any name is repeated with a number.
#[derive(Default)]
pub struct Names {
    left: Vec<String>,
    used: usize,
}

impl Names {
    pub fn shuffle(&mut self, random: &mut Random) {
        self.left = FIRST.iter().flat_map(|first| SECOND.map(|second| format!("{first} {second}"))).collect();
        random.shuffle(&mut self.left);
    }

    pub fn next_street(&mut self) -> String {
        let name = self.left[self.used % self.left.len()].clone();
        self.used += 1;
        match (self.used - 1) / self.left.len() {
            0 => name,
            round => format!("{name} {}", round + 1),
        }
    }
}
