//! Fuzzes reports of a media receiver, encrypted with its own keys; they may contain anything. Input: outgoing
//! packets, elapsed time, and reports.

#![no_main]

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use dimpl::SrtpProfile;
use libfuzzer_sys::{arbitrary::Arbitrary, fuzz_target};
use millrace_rtc::crypto::KeyingMaterial;
use millrace_sfu::{
    congestion::Algorithm,
    egress::{Egress, Keys, OutgoingStream, Packet, ReportIndex, ReportOutcome},
};
use str0m::rtp::{Extension, ExtensionMap};

const PROFILES: [(SrtpProfile, usize); 3] = [
    (SrtpProfile::AES128_CM_SHA1_80, 2 * (16 + 14)),
    (SrtpProfile::AEAD_AES_128_GCM, 2 * (16 + 12)),
    (SrtpProfile::AEAD_AES_256_GCM, 2 * (32 + 12)),
];
const SSRC: u32 = 1;
const RTX_SSRC: u32 = 2;
const STEPS_MAX: usize = 200;
const PAYLOAD_MAX: usize = 1200;
/// Maximum bytes sent without a write: the burst allowance of half of a 1 Gbit/s path, plus probes; or padding in each
/// step.
const UNASKED_MAX: usize = 2 << 20;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    profile: u8,
    algorithm: u8,
    /// The client reports its own estimate instead of arrival times.
    has_send_times: bool,
    steps: Vec<Step<'a>>,
}

#[derive(Arbitrary, Debug)]
enum Step<'a> {
    Write {
        bytes: u16,
    },
    Pass {
        ms: u8,
    },
    Report {
        bytes: &'a [u8],
    },
    /// Not encrypted, or encrypted with other keys.
    Forged {
        bytes: &'a [u8],
    },
    Desired {
        kbps: u16,
    },
}

fuzz_target!(|input: Input<'_>| {
    let (profile, bytes) = PROFILES[usize::from(input.profile) % PROFILES.len()];
    let material = |is_client| KeyingMaterial { profile, bytes: (0..bytes as u8).collect(), is_client };
    let (other, _) = Keys::pair(&material(false)).expect("a known profile");
    let algorithm = Algorithm::ALL[usize::from(input.algorithm) % Algorithm::ALL.len()];
    let mut now = Instant::now();
    let to = SocketAddr::from(([127, 0, 0, 1], 9));
    let mut egress = Egress::new(&material(true), to, algorithm, now).expect("a known profile");
    let mut extensions = ExtensionMap::empty();
    let number = Extension::TransportSequenceNumber;
    extensions.set(3, if input.has_send_times { Extension::AbsoluteSendTime } else { number });
    egress.stream("v".into(), || OutgoingStream::new("v".into(), &extensions, SSRC, Some(RTX_SSRC), now));
    let (mut sequence, mut reports, mut unasked) = (1000, 0, Vec::new());
    let mut numbers = HashSet::new();
    for step in input.steps.iter().take(STEPS_MAX) {
        match *step {
            Step::Write { bytes } => {
                let packet = Packet {
                    payload_type: 96,
                    rtx_payload_type: Some(97),
                    sequence,
                    time: sequence as u32,
                    clock_hz: 90_000,
                    marker: bytes & 1 == 0,
                    audio_level: None,
                    orientation: None,
                    patch: None,
                    payload: Arc::from(vec![7; usize::from(bytes) % PAYLOAD_MAX]),
                };
                sequence += 1;
                let datagram = egress.write(0, &packet, now).expect("the stream exists");
                assert!(numbers.insert((datagram[8..12].to_vec(), datagram[2..4].to_vec())));
            }
            Step::Pass { ms } => {
                now += Duration::from_millis(ms.into());
                if egress.timeout().is_some_and(|at| at <= now) {
                    egress.handle_timeout(now, |datagram| unasked.push(datagram));
                }
            }
            Step::Report { bytes } => {
                let mut sealed = bytes.to_vec();
                reports += 1;
                if other.seal_report(&mut sealed, ReportIndex::numbered(reports)).is_some() {
                    let outcome = egress.handle_report(&sealed, now, |datagram| unasked.push(datagram));
                    assert_ne!(outcome, ReportOutcome::Spurious, "it is genuine");
                }
                let _ = egress.correct(&mut bytes.to_vec(), now);
            }
            Step::Forged { bytes } => {
                let outcome = egress.handle_report(bytes, now, |_| panic!("nothing leaves for a stranger"));
                assert_eq!(outcome, ReportOutcome::Spurious);
            }
            Step::Desired { kbps } => egress.set_desired(u64::from(kbps) * 1000, now),
        }
        let estimate = egress.bits_per_s();
        assert!(estimate.is_some() || input.has_send_times, "packets are numbered");
        assert!(estimate.is_none_or(|rate| (30_000..=1_000_000_000).contains(&rate)), "{estimate:?}");
    }
    for datagram in &unasked {
        assert_eq!(datagram[8..12], RTX_SSRC.to_be_bytes(), "never a number twice with one key");
        assert!(numbers.insert((datagram[8..12].to_vec(), datagram[2..4].to_vec())));
    }
    assert!(unasked.iter().map(Vec::len).sum::<usize>() <= UNASKED_MAX);
});
