"""aiortc as a participant of a room: aiortc_peer.py URL ROOM TOPOLOGY

Prints one line of JSON per second (see ../README.md) until SIGTERM. With the topology `switch` it publishes by WHIP and
plays by WHEP; otherwise it answers the offer of the other participant.
"""

import asyncio
import json
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from fractions import Fraction

import aiortc
from aiortc import (
    RTCConfiguration,
    RTCIceServer,
    RTCIceTransportPolicy,
    RTCPeerConnection,
    RTCSessionDescription,
    VideoStreamTrack,
)
from aiortc.rtcdtlstransport import RTCDtlsTransport
from aiortc.sdp import candidate_from_sdp
from film import FPS, picture

REPORT_EVERY_S = 5

url, room, topology = sys.argv[1:4]
counts = {
    "sent": {"bytes": 0, "packets": 0},
    "received": {"bytes": 0, "packets": 0},
    "rtcp_sent": {},
    "rtcp_received": {},
    "frames": 0,
    "changes": 0,
}


def kind_of(packet_type, packet_format, is_remb):
    """Returns the name of an RTCP packet as in ../rtcp.mjs."""
    if packet_type == 205:
        return {1: "NACK", 15: "TWCC", 11: "CCFB"}.get(packet_format, f"RTPFB/{packet_format}")
    if packet_type == 206:
        known = {1: "PLI", 4: "FIR"} | ({15: "REMB"} if is_remb else {})
        return known.get(packet_format, f"PSFB/{packet_format}")
    known = {200: "SR", 201: "RR", 202: "SDES", 203: "BYE", 204: "APP", 207: "XR"}
    return known.get(packet_type, str(packet_type))


def count(direction, data):
    """Counts a packet before encryption, or after decryption."""
    if 192 <= data[1] <= 223:
        kinds, at = counts[f"rtcp_{direction}"], 0
        while at + 4 <= len(data):
            kind = kind_of(data[at + 1], data[at] & 31, data[at + 12 : at + 16] == b"REMB")
            kinds[kind] = kinds.get(kind, 0) + 1
            at += 4 * (int.from_bytes(data[at + 2 : at + 4], "big") + 1)
    else:
        counts[direction]["bytes"] += len(data)
        counts[direction]["packets"] += 1


def observe():
    """Counts all packets at the border between RTP and encryption."""
    send, rtp, rtcp = RTCDtlsTransport._send_rtp, RTCDtlsTransport._handle_rtp_data, RTCDtlsTransport._handle_rtcp_data

    async def send_counted(self, data):
        count("sent", data)
        await send(self, data)

    async def rtp_counted(self, data, arrival_time_ms):
        count("received", data)
        await rtp(self, data, arrival_time_ms=arrival_time_ms)

    async def rtcp_counted(self, data):
        count("received", data)
        await rtcp(self, data)

    RTCDtlsTransport._send_rtp = send_counted
    RTCDtlsTransport._handle_rtp_data = rtp_counted
    RTCDtlsTransport._handle_rtcp_data = rtcp_counted


class Film(VideoStreamTrack):
    """The video of film.py, in real time."""

    def __init__(self):
        super().__init__()
        self.started = None
        self.number = 0

    async def recv(self):
        self.started = self.started or time.monotonic()
        await asyncio.sleep(max(0, self.started + self.number / FPS - time.monotonic()))
        frame = picture(self.number)
        frame.pts, frame.time_base = self.number * 90000 // FPS, Fraction(1, 90000)
        self.number += 1
        return frame


async def watch(track):
    """Counts received frames, and those that differ from the frame before."""
    before = None
    while True:
        try:
            frame = await track.recv()
        except aiortc.mediastreams.MediaStreamError:
            return
        counts["frames"] += 1
        pixels = bytes(frame.planes[0])[:: frame.planes[0].line_size * 8 + 17]
        if before is not None and pixels != before:
            counts["changes"] += 1
        before = pixels


def request(method, path, body=None, headers=None, content_type="application/json"):
    """Returns the parsed answer, and its location."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
    headers = {"Content-Type": content_type, **(headers or {})}
    with urllib.request.urlopen(urllib.request.Request(url + path, data, headers, method=method), timeout=10) as answer:
        text = answer.read().decode()
        is_json = answer.headers.get("Content-Type", "").startswith("application/json")
        return json.loads(text) if is_json and text else text


ask = lambda *all, **named: asyncio.to_thread(request, *all, **named)  # noqa: E731


class Participant:
    """A participant by the rooms API (docs/reference/protocol.md, "Rooms"). The other one opens the link."""

    async def join(self):
        joined = await ask("POST", f"/v1/rooms/{room}/participants", {"name": "aiortc", "topology": topology})
        self.path = f"/v1/rooms/{room}/participants/{joined['participant']}"
        self.secret = {"Millrace-Participant": joined["secret"]}
        servers = joined["ice_servers"] or (await ask("POST", "/v1/turn"))["ice_servers"]
        relay = RTCIceTransportPolicy.RELAY if topology == "relay" else RTCIceTransportPolicy.ALL
        servers = [RTCIceServer(**server) for server in servers]
        self.pc = RTCPeerConnection(RTCConfiguration(iceServers=servers, iceTransportPolicy=relay))
        # The data channel that the project's client has on every link.
        self.pc.createDataChannel("room", negotiated=True, id=0)
        self.pc.on("track", lambda track: asyncio.ensure_future(watch(track)))
        self.answered = False
        inbox = f"rooms/{room}/inbox/{joined['participant']}"
        self.signals = asyncio.Queue()
        loop = asyncio.get_running_loop()
        threading.Thread(target=self.read, args=(loop, inbox, joined["positions"][inbox]), daemon=True).start()
        asyncio.ensure_future(self.handle())
        asyncio.ensure_future(self.report())

    def read(self, loop, inbox, since):
        address = f"{url}/v1/channels/{inbox}?since={since}"
        stream = urllib.request.urlopen(urllib.request.Request(address, headers={"Accept": "application/x-ndjson"}))
        for line in stream:
            if line.strip():
                loop.call_soon_threadsafe(self.signals.put_nowait, json.loads(line))

    async def report(self):
        while True:
            await ask("POST", f"{self.path}/reports", {}, self.secret)
            await asyncio.sleep(REPORT_EVERY_S)

    async def handle(self):
        while True:
            message = await self.signals.get()
            signal = message.get("data", message)
            description, candidate = signal.get("description"), signal.get("candidate")
            if description and description["type"] == "offer":
                await self.answer(signal, description)
            elif candidate and candidate["candidate"]:
                parsed = candidate_from_sdp(candidate["candidate"].split(":", 1)[1])
                parsed.sdpMid, parsed.sdpMLineIndex = candidate.get("sdpMid"), candidate.get("sdpMLineIndex")
                await self.pc.addIceCandidate(parsed)

    async def answer(self, signal, description):
        await self.pc.setRemoteDescription(RTCSessionDescription(description["sdp"], "offer"))
        if not self.answered:
            self.pc.addTrack(Film())
            self.answered = True
        await self.pc.setLocalDescription(await self.pc.createAnswer())
        local = {"type": "answer", "sdp": self.pc.localDescription.sdp}
        body = {"to": signal["from"], "description": local, "link": signal.get("link"), "streams": {}}
        await ask("POST", f"{self.path}/signals", body, self.secret)

    def connections(self):
        return [self.pc]


class Viewer:
    """Publishes by WHIP and plays by WHEP (docs/reference/rooms.md)."""

    async def join(self):
        self.publisher, self.player = RTCPeerConnection(), RTCPeerConnection()
        self.publisher.addTrack(Film())
        await self.offer(self.publisher, "whip?name=aiortc")
        self.player.on("track", lambda track: asyncio.ensure_future(watch(track)))
        self.player.addTransceiver("video", direction="recvonly")
        await self.offer(self.player, "whep")

    async def offer(self, pc, path):
        await pc.setLocalDescription(await pc.createOffer())
        offer = pc.localDescription.sdp.encode()
        answer = await ask("POST", f"/v1/rooms/{room}/{path}", offer, content_type="application/sdp")
        await pc.setRemoteDescription(RTCSessionDescription(answer, "answer"))

    def connections(self):
        return [self.publisher, self.player]


def route_of(pc):
    """Returns the types of the candidates in use."""
    for transceiver in pc.getTransceivers():
        ice = transceiver.sender.transport.transport._connection
        pair = ice._nominated.get(1)
        if pair:
            return f"{pair.local_candidate.type}-{pair.remote_candidate.type}"
    return None


async def main():
    observe()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    peer = Viewer() if topology == "switch" else Participant()
    await peer.join()
    while not stop.is_set():
        connections = peer.connections()
        states = {pc.connectionState for pc in connections}
        line = {"at": time.time() * 1000, "version": aiortc.__version__, "codec": "VP8", **counts}
        line |= {"state": states.pop() if len(states) == 1 else "connecting", "route": route_of(connections[0])}
        print(json.dumps(line), flush=True)
        try:
            await asyncio.wait_for(stop.wait(), 1)
        except asyncio.TimeoutError:
            pass
    await asyncio.gather(*(pc.close() for pc in peer.connections()))


asyncio.run(main())
