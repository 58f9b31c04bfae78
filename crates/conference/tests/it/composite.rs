//! Composite video over real RTP: two cameras by WHIP, and a viewer by WHEP that decodes what it receives.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use millrace_sfu::{
    MediaClient, MediaEvent, MediaKind, MediaOutput,
    compositor::{Depacketizer, FRAME_TIME, SIZE, VideoDecoder, VideoEncoder, VideoPacket, packetize},
};
use rusty_h264::YuvFrame;
use serde_json::json;
use tokio::net::UdpSocket;

use crate::{
    rooms::{ask, join},
    server::Server,
};

const SDP: (&str, &str) = ("content-type", "application/sdp");
const CAMERA_SIZE: (usize, usize) = (320, 240);
/// Luma of the two cameras.
const LUMAS: [u8; 2] = [90, 210];
const PATIENCE: Duration = Duration::from_secs(30);

/// One end of a WHIP or WHEP session, with its socket.
struct End {
    client: MediaClient,
    socket: UdpSocket,
    local: SocketAddr,
    out: Out,
}

#[derive(Default)]
struct Out {
    datagrams: Vec<(SocketAddr, Vec<u8>)>,
    events: Vec<MediaEvent>,
    is_connected: bool,
}

impl MediaOutput for Out {
    fn send(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        self.datagrams.push((to, datagram));
    }

    fn event(&mut self, event: MediaEvent) {
        self.is_connected |= event == MediaEvent::Connected;
        self.events.push(event);
    }
}

impl End {
    async fn begin(server: &Server, place: &str, sends: &[MediaKind], receives: &[MediaKind]) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let local = socket.local_addr().expect("an address");
        let (mut client, offer) = MediaClient::offer_h264(local, sends, receives, Instant::now());
        let answer = ask(server, "POST", &format!("/v1/rooms/r/{place}"), &[SDP], offer).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        client.accept(&answer.text()).expect("a good answer");
        Self { client, socket, local, out: Out::default() }
    }

    /// Handles what has arrived and what is due, and sends what results.
    fn turn(&mut self) {
        let Self { client, socket, local, out } = self;
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.try_recv_from(&mut buffer) {
            client.handle_datagram(Instant::now(), (from, *local), &buffer[..length], out).expect("a live connection");
        }
        if client.timeout() <= Instant::now() {
            client.handle_timeout(Instant::now(), out).expect("a live connection");
        }
        for (to, datagram) in out.datagrams.drain(..) {
            let _ = socket.try_send_to(&datagram, to);
        }
    }
}

/// A camera of one color.
struct Camera {
    end: End,
    encoder: VideoEncoder,
    luma: u8,
    frames: u32,
}

impl Camera {
    async fn begin(server: &Server, name: &str, luma: u8) -> Self {
        let end = End::begin(server, &format!("whip?name={name}"), &[MediaKind::Video], &[]).await;
        Self { end, encoder: VideoEncoder::new(CAMERA_SIZE, 30), luma, frames: 0 }
    }

    fn shoot(&mut self) {
        let is_request = |event: &MediaEvent| matches!(event, MediaEvent::KeyframeWanted { .. });
        let is_key = self.end.out.events.iter().any(is_request);
        self.end.out.events.clear();
        let mut frame = YuvFrame::black(CAMERA_SIZE.0, CAMERA_SIZE.1);
        frame.y.fill(self.luma);
        let encoded = self.encoder.encode(&frame, is_key).expect("a frame");
        self.frames += 1;
        let payloads: Vec<Arc<[u8]>> = packetize(&encoded.bytes);
        let count = payloads.len();
        for (at, payload) in payloads.into_iter().enumerate() {
            let packet = (self.frames * 3000, at == count - 1, payload);
            self.end.client.send(0, packet, Instant::now(), &mut self.end.out).expect("a live connection");
        }
    }
}

#[tokio::test]
async fn viewer_receives_one_video_of_all_cameras() {
    let server = Server::with(|config| {
        config.rooms.mixers_max = 1;
        config.rooms.mixer_video = true;
    });
    // A participant that sends audio opens the room, and has a cell without video.
    let ann = join(&server, "r", json!({ "topology": "mixer" })).await;
    let local = "127.0.0.1:9".parse().expect("an address");
    let (_, offer) = MediaClient::offer(local, &[MediaKind::Audio], &[], Instant::now());
    let signal = json!({ "to": "switch", "description": { "type": "offer", "sdp": offer } });
    assert_eq!(ann.post(&server, "signals", signal).await.status, 204);
    let [left, right] = LUMAS;
    let mut cameras = [Camera::begin(&server, "left", left).await, Camera::begin(&server, "right", right).await];
    let mut viewer = End::begin(&server, "whep", &[], &[MediaKind::Video]).await;
    let (mut depacketizer, mut decoder) = (Depacketizer::default(), VideoDecoder::default());
    let (began, mut next, mut seen) = (Instant::now(), Instant::now(), [0, 0]);
    // Both videos are shown in their own size, whatever the grid: it has one cell more while the participant is there.
    while seen.iter().any(|pixels| *pixels < CAMERA_SIZE.0 * CAMERA_SIZE.1 * 9 / 10) {
        assert!(began.elapsed() < PATIENCE, "{seen:?} pixels of the two colors");
        if next <= Instant::now() {
            next += FRAME_TIME;
            cameras.iter_mut().filter(|camera| camera.end.out.is_connected).for_each(Camera::shoot);
        }
        cameras.iter_mut().for_each(|camera| camera.end.turn());
        viewer.turn();
        for event in viewer.out.events.drain(..) {
            if let MediaEvent::Packet { line: 0, sequence, time, marker, payload } = event {
                depacketizer.push(VideoPacket { sequence, time: time.into(), marker, payload }, Instant::now());
            }
        }
        while let Some(unit) = depacketizer.poll(Instant::now()) {
            if let Some(frame) = decoder.decode(&unit) {
                assert_eq!((frame.width, frame.height), SIZE);
                seen = LUMAS.map(|luma| frame.y.iter().filter(|pixel| pixel.abs_diff(luma) <= 8).count());
            }
        }
        // The viewer receives the most. All ends share this task, and the others wait for at most the next frame.
        let _ = tokio::time::timeout_at(next.into(), viewer.socket.readable()).await;
    }
    let room = server.get("/v1/rooms/r").await.json();
    // The state names the cameras and their cells, in the order of joining.
    let cells = room["composite"]["cells"].as_array().expect("a list").clone();
    let mut shown: Vec<&str> = cells.iter().filter_map(|cell| cell["participant"].as_str()).collect();
    shown.retain(|name| *name != ann.id);
    assert_eq!(shown, ["left", "right"], "{room}");
    let size = (&room["composite"]["width"], &room["composite"]["height"]);
    assert_eq!(size, (&json!(SIZE.0), &json!(SIZE.1)));
    assert_eq!((&cells[0]["x"], &cells[0]["width"]), (&json!(0), &json!(SIZE.0 / 2)), "{room}");
    let viewer = room["switch"].as_array().expect("a list").iter().find(|member| member["name"] == "whep");
    assert_eq!(viewer.map(|viewer| &viewer["receives"][0]["from"]), Some(&json!("mix")), "{room}");
}
