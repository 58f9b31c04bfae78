// Runs in the page of a browser: joins a room with the project's client, sends a canvas that changes all the time, and
// reads statistics. `browser.mjs` calls `start` and `read`.
import { joinRoom } from '../../../sdk/typescript/src/room/index.ts';

const connections = [];
window.RTCPeerConnection = class extends RTCPeerConnection {
  constructor(configuration) {
    super(configuration);
    connections.push(this);
  }
};

function paint({ width, height, fps }) {
  const sheet = Object.assign(document.createElement('canvas'), { width, height });
  const pen = sheet.getContext('2d');
  const chance = (max) => Math.random() * max;
  setInterval(() => {
    for (let i = 0; i < 10; i++) {
      pen.fillStyle = `hsl(${chance(360)} 70% 50%)`;
      pen.fillRect(chance(width), chance(height), width / 16, height / 16);
    }
  }, 1000 / fps);
  return sheet.captureStream(fps);
}

const small = Object.assign(document.createElement('canvas'), { width: 16, height: 12 });
const eye = small.getContext('2d', { willReadFrequently: true });
let video;
let before;
let changes = 0;

/** Counts the readings in which the received video differs from the previous reading. */
function look() {
  if (!video?.videoWidth) return changes;
  eye.drawImage(video, 0, 0, small.width, small.height);
  const pixels = eye.getImageData(0, 0, small.width, small.height).data;
  if (before && pixels.some((value, i) => Math.abs(value - before[i]) > 16)) changes++;
  before = pixels;
  return changes;
}

window.start = async (room, topology, picture) => {
  const joined = await joinRoom(location.origin, room, { topology, name: 'browser', stream: paint(picture) });
  joined.on('track', ({ track, stream }) => {
    if (track.kind !== 'video') return;
    video ??= document.body.appendChild(Object.assign(document.createElement('video'), { muted: true, autoplay: true }));
    video.srcObject = stream;
  });
  window.room = joined;
  return joined.id;
};

const sum = (list, ...names) => list.reduce((sum, each) => names.reduce((sum, name) => sum + (each[name] ?? 0), sum), 0);

window.read = async () => {
  const open = connections.filter(({ connectionState }) => connectionState !== 'closed');
  const stats = (await Promise.all(open.map((connection) => connection.getStats()))).flatMap((report) => [...report.values()]);
  const of = (type) => stats.filter((each) => each.type === type && each.kind === 'video');
  const [out, into] = [of('outbound-rtp'), of('inbound-rtp')];
  const pair = stats.find((each) => each.type === 'candidate-pair' && each.nominated && each.state === 'succeeded');
  const candidate = (id) => stats.find((each) => each.id === id)?.candidateType;
  const codec = stats.find(({ id }) => id === (out[0] ?? into[0])?.codecId)?.mimeType;
  return {
    state: open[0]?.connectionState ?? 'new',
    route: pair && `${candidate(pair.localCandidateId)}-${candidate(pair.remoteCandidateId)}`,
    codec: codec?.replace('video/', ''),
    sent: { bytes: sum(out, 'bytesSent', 'headerBytesSent'), packets: sum(out, 'packetsSent') },
    received: { bytes: sum(into, 'bytesReceived', 'headerBytesReceived'), packets: sum(into, 'packetsReceived'), lost: sum(into, 'packetsLost') },
    frames: sum(into, 'framesDecoded'),
    changes: look(),
    height: into[0]?.frameHeight,
  };
};
