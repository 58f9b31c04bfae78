//! Fuzzes a link between two nodes: the other node is authenticated, but may send anything at any time. Input: frames,
//! tracks and packets of this node, and elapsed time.

#![no_main]

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use libfuzzer_sys::{arbitrary::Arbitrary, fuzz_target};
use millrace_sfu::{
    cascade::{
        Codec, Event, Handle, LAYERS_MAX, Layers, Link, NodeId, Packet, TrackInfo, Want,
        frame::{self, Body, FIRST_BYTE, FRAME_BYTES_MAX, Head, VERSION, decode},
    },
    congestion::Algorithm,
};

const STEPS_MAX: usize = 200;
const EPOCH: u32 = 7;
const PAYLOAD_BYTES: usize = 500;
/// Maximum bytes that one frame of the other node causes: one NACK, within the allowance of retransmissions.
const ANSWER_BYTES_MAX: usize = 70_000 + FRAME_BYTES_MAX;

#[derive(Arbitrary, Debug)]
enum Step<'a> {
    /// A frame with a valid head.
    Frame {
        kind: u8,
        epoch: u8,
        sequence: u16,
        body: &'a [u8],
    },
    Raw {
        bytes: &'a [u8],
    },
    Pass {
        ms: u16,
    },
    Tracks {
        count: u8,
    },
    Wants {
        handle: u8,
        layers: u8,
    },
    Forward {
        handle: u8,
        layer: u8,
    },
    Keyframe {
        handle: u8,
        layer: u8,
    },
}

fuzz_target!(|steps: Vec<Step<'_>>| {
    let mut now = Instant::now();
    let (local, remote) = (NodeId::new("a").expect("short"), NodeId::new("b").expect("short"));
    let mut link = Link::new((local, remote.clone()), EPOCH, Algorithm::Gcc, now);
    link.handle_frame(&frame::hello(Head { epoch: 1, sequence: 0 }, &remote, EPOCH), now).expect("it is valid");
    let mut sent: HashMap<u64, Vec<u8>> = HashMap::new();
    let mut next = 1;
    for (number, step) in steps.iter().take(STEPS_MAX).enumerate() {
        let mut answers = None;
        match *step {
            Step::Frame { kind, epoch, sequence, body } => {
                let mut bytes = vec![FIRST_BYTE + VERSION, kind & 15];
                bytes.extend_from_slice(&u32::from(epoch % 3 + 1).to_be_bytes());
                bytes.extend_from_slice(&u64::from(sequence).to_be_bytes());
                bytes.extend_from_slice(body);
                if link.handle_frame(&bytes, now).is_err() {
                    return;
                }
                answers = Some(bytes.len());
            }
            Step::Raw { bytes } => {
                if link.handle_frame(bytes, now).is_err() {
                    return;
                }
                answers = Some(bytes.len());
            }
            Step::Pass { ms } => {
                now += Duration::from_millis(ms.into());
                for _ in 0..10 {
                    if link.timeout() > now {
                        break;
                    }
                    link.handle_timeout(now);
                }
            }
            Step::Tracks { count } => {
                let track = |handle: u32| TrackInfo {
                    handle: Handle(handle),
                    generation: 1,
                    room: "r".into(),
                    member: "m".into(),
                    index: 0,
                    is_audio: handle % 3 == 0,
                    is_muted: handle % 5 == 0,
                    is_participant: handle % 7 == 0,
                    is_screen: false,
                    layers: 3,
                };
                link.set_tracks((0..u32::from(count)).map(track), now);
            }
            Step::Wants { handle, layers } => {
                let want = Want { handle: Handle(handle.into()), layers: Layers(layers & 15), has_priority: false };
                link.set_wants([want].into_iter(), now);
            }
            Step::Forward { handle, layer } => {
                let packet = Packet {
                    layer: layer % LAYERS_MAX as u8,
                    codec: Codec::new(1).expect("it is small"),
                    sequence: number as u64,
                    time: number as u64,
                    marker: false,
                    audio_level: (handle % 3 == 0).then_some((layer & 127, true)),
                    orientation: None,
                    payload: [7; PAYLOAD_BYTES].into(),
                };
                link.forward(Handle(handle.into()), &packet, now);
            }
            Step::Keyframe { handle, layer } => link.request_keyframe(Handle(handle.into()), layer, now),
        }
        let mut bytes = 0;
        while let Some(frame) = link.poll_frame() {
            bytes += frame.len();
            let (head, body) = decode(&frame).expect("its own frames are valid");
            assert_eq!(head.epoch, EPOCH);
            if matches!(body, Body::Media { .. } | Body::Keyframe { .. } | Body::SenderReport(_))
                && head.sequence < next
            {
                assert_eq!(
                    sent.get(&head.sequence),
                    Some(&frame),
                    "a number is a nonce: only the same frame repeats it"
                );
            } else {
                assert_eq!(head.sequence, next, "numbers are consecutive");
                next += 1;
            }
            sent.insert(head.sequence, frame);
        }
        assert!(answers.is_none() || bytes <= ANSWER_BYTES_MAX, "{bytes} bytes for one frame");
        while let Some(event) = link.poll_event() {
            if let Event::Media(handle, packet) = event {
                assert!(link.remote_track(handle).is_some() && usize::from(packet.layer) < LAYERS_MAX);
            }
        }
        assert!((30_000..=1_000_000_000).contains(&link.bits_per_s()));
    }
});
