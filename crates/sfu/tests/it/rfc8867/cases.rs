/// A test case of RFC 8867, section 5.
pub struct Case {
    /// Section of the RFC.
    pub section: &'static str,
    pub name: &'static str,
    pub seconds: u64,
    /// Capacity of both directions: from this second on, bit/s.
    pub forward: &'static [(u64, u64)],
    pub backward: &'static [(u64, u64)],
    pub flows: &'static [FlowSpec],
}

/// One flow of a case.
#[derive(Clone, Copy)]
pub struct FlowSpec {
    pub source: Source,
    pub is_forward: bool,
    pub start_s: u64,
    /// One-way delay of the path in each direction, without the queue.
    pub delay_ms: u64,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Source {
    /// A video, possibly silent between two seconds.
    Video { pause_s: Option<(u64, u64)> },
    /// A transfer without end.
    LongTcp,
    /// Files, with pauses between them.
    ShortTcp,
}

const WIDE: &[(u64, u64)] = &[(0, 100_000_000)];

const fn video(start_s: u64, delay_ms: u64) -> FlowSpec {
    FlowSpec { source: Source::Video { pause_s: None }, is_forward: true, start_s, delay_ms }
}

/// Two paths of libwebrtc's unit tests of SCReAM v2, for which it states figures.
pub const LIBWEBRTC: &[Case] = &[
    Case {
        section: "W1",
        name: "1 Mbit/s, one-way delay 25 ms",
        seconds: 60,
        forward: &[(0, 1_000_000)],
        backward: WIDE,
        flows: &[video(0, 25)],
    },
    Case {
        section: "W2",
        name: "2 Mbit/s, one-way delay 10 ms",
        seconds: 900,
        forward: &[(0, 2_000_000)],
        backward: WIDE,
        flows: &[video(0, 10)],
    },
];

const fn tcp(source: Source, start_s: u64) -> FlowSpec {
    FlowSpec { source, is_forward: true, start_s, delay_ms: 50 }
}

pub const CASES: &[Case] = &[
    Case {
        section: "5.1",
        name: "variable capacity, one flow",
        seconds: 100,
        forward: &[(0, 1_000_000), (40, 2_500_000), (60, 600_000), (80, 1_000_000)],
        backward: WIDE,
        flows: &[video(0, 50)],
    },
    Case {
        section: "5.2",
        name: "variable capacity, two flows",
        seconds: 125,
        forward: &[(0, 4_000_000), (25, 2_000_000), (50, 3_500_000), (75, 1_000_000), (100, 2_000_000)],
        backward: WIDE,
        flows: &[video(0, 50), video(0, 50)],
    },
    Case {
        section: "5.3",
        name: "congested reports, both directions",
        seconds: 100,
        forward: &[(0, 2_000_000), (20, 1_000_000), (40, 500_000), (60, 2_000_000)],
        backward: &[(0, 2_000_000), (35, 800_000), (70, 2_000_000)],
        flows: &[video(0, 50), FlowSpec { is_forward: false, ..video(0, 50) }],
    },
    Case {
        section: "5.4",
        name: "three flows, one after the other",
        seconds: 120,
        forward: &[(0, 3_500_000)],
        backward: WIDE,
        flows: &[video(0, 50), video(20, 50), video(40, 50)],
    },
    Case {
        section: "5.5",
        name: "five flows with unequal delays",
        seconds: 300,
        forward: &[(0, 4_000_000)],
        backward: WIDE,
        flows: &[video(0, 10), video(10, 25), video(20, 50), video(30, 100), video(40, 150)],
    },
    Case {
        section: "5.6",
        name: "beside a long TCP transfer",
        seconds: 120,
        forward: &[(0, 2_000_000)],
        backward: WIDE,
        flows: &[video(0, 50), tcp(Source::LongTcp, 5)],
    },
    Case {
        section: "5.7",
        name: "beside short TCP transfers",
        seconds: 300,
        forward: &[(0, 2_000_000)],
        backward: WIDE,
        flows: &[
            video(0, 50),
            video(0, 50),
            tcp(Source::ShortTcp, 0),
            tcp(Source::ShortTcp, 0),
            tcp(Source::ShortTcp, 5),
            tcp(Source::ShortTcp, 5),
            tcp(Source::ShortTcp, 10),
            tcp(Source::ShortTcp, 10),
            tcp(Source::ShortTcp, 15),
            tcp(Source::ShortTcp, 15),
            tcp(Source::ShortTcp, 20),
            tcp(Source::ShortTcp, 20),
        ],
    },
    Case {
        section: "5.8",
        name: "three flows, one pauses",
        seconds: 120,
        forward: &[(0, 3_500_000)],
        backward: WIDE,
        flows: &[
            FlowSpec { source: Source::Video { pause_s: Some((40, 60)) }, ..video(0, 50) },
            video(0, 50),
            video(0, 50),
        ],
    },
];
