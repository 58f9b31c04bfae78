// The quality of a link, from statistics as Chromium and Firefox give them.
import { expect, test } from 'vitest';
import type { Link } from '../src/room/link.js';
import { measure } from '../src/room/measure.js';
import { Meter } from '../src/room/quality.js';

type Stat = { id: string; type: string } & Record<string, unknown>;

/** Reads the statistics as those of a link on which this page, participant `me`, sends one video track. */
async function read(stats: Stat[], mid = '0') {
  const transceivers = [{ mid, sender: { track: { id: 'camera' } } }];
  const pc = { getStats: async () => new Map(stats.map((stat) => [stat.id, stat])), getTransceivers: () => transceivers } as unknown as RTCPeerConnection;
  const ownerOf = (track?: string) => (track === 'camera' ? 'me' : undefined);
  return new Meter().read({ to: 'peer', pc, connectedAt: performance.now() - 1000, setupMs: undefined, ownerOf });
}
const readLink = async (stats: Stat[], mid?: string) => (await read(stats, mid)).link;

const candidates: Stat[] = [
  { id: 'local', type: 'local-candidate', candidateType: 'host' },
  { id: 'remote', type: 'remote-candidate', candidateType: 'relay' },
  { id: 'other', type: 'candidate-pair', state: 'failed', nominated: false, currentRoundTripTime: 9, localCandidateId: 'local', remoteCandidateId: 'local' },
  { id: 'pair', type: 'candidate-pair', state: 'succeeded', nominated: true, currentRoundTripTime: 0.02, localCandidateId: 'local', remoteCandidateId: 'remote' },
];
const video: Stat = { id: 'out', type: 'outbound-rtp', kind: 'video', bytesSent: 1000, framesEncoded: 30 };

test('Chromium: an outgoing stream names its source, and the transport its candidate pair', async () => {
  const link = await readLink([
    ...candidates,
    { id: 'transport', type: 'transport', selectedCandidatePairId: 'pair' },
    { id: 'source', type: 'media-source', trackIdentifier: 'camera' },
    { ...video, mediaSourceId: 'source', qualityLimitationReason: 'cpu' },
  ]);
  expect(link).toMatchObject({ rtt_ms: 20, kind: 'relay', streams: [{ from: 'me', direction: 'out', limited_by: 'cpu' }] });
});

test('Firefox: an outgoing stream is found by its line of the SDP; what limits it is unknown', async () => {
  const link = await readLink([...candidates, { id: 'transport', type: 'transport', selectedCandidatePairId: 'pair' }, { ...video, mid: '0' }]);
  expect(link).toMatchObject({ rtt_ms: 20, kind: 'relay', streams: [{ from: 'me', direction: 'out' }] });
  expect(link.streams[0]).not.toHaveProperty('limited_by');
});

test('the rate assigned to the encoder, and the share of retransmissions', async () => {
  const source: Stat = { id: 'source', type: 'media-source', trackIdentifier: 'camera' };
  const sent = { ...video, mediaSourceId: 'source', packetsSent: 40, retransmittedPacketsSent: 10 };
  expect((await readLink([...candidates, source, { ...sent, targetBitrate: 30_000 }])).streams[0]).toMatchObject({ target_kbps: 30, retransmitted: 0.25 });
  const inFirefox = (await readLink([...candidates, source, sent])).streams[0];
  expect(inFirefox).toMatchObject({ retransmitted: 0.25 });
  expect(inFirefox).not.toHaveProperty('target_kbps');
});

test('a new link is not measured for the steering', async () => {
  const link = { isConnected: true, connectedAt: performance.now() - 1_000 } as unknown as Link;
  const meter = { read: async () => ({ link: { streams: [] }, uplink_kbps: undefined, codec_cpu: 0 }) } as unknown as Meter;
  const measured = (age?: number) => measure([link], new Map([[link, meter]]), { calls: 1, calls_failed: 0 }, age);
  expect((await measured()).links).toHaveLength(1);
  expect((await measured(900)).links).toHaveLength(1);
  expect((await measured(6_000)).links).toHaveLength(0);
});

test('Firefox before 153: the nominated candidate pair is the one in use', async () => {
  expect(await readLink([...candidates, { id: 'transport', type: 'transport' }])).toMatchObject({ rtt_ms: 20, kind: 'relay' });
});

test('a stream of another line belongs to no track of this page', async () => {
  expect((await readLink([...candidates, { ...video, mid: '0' }], '1')).streams).toEqual([]);
});

const remote: Stat = { id: 'remote-out', type: 'remote-inbound-rtp', localId: 'out', roundTripTime: 0.03, fractionLost: 0 };

test.each([
  ['Chromium', { availableOutgoingBitrate: 300_000 }, 300],
  ['Firefox, and Safari from 16.2 on', {}, undefined],
  ['a browser before its first estimate', { availableOutgoingBitrate: 0 }, undefined],
])('the uplink in %s', async (_, figures, uplink) => {
  expect((await read([...candidates.slice(0, 3), { ...candidates[3]!, ...figures }])).uplink_kbps).toBe(uplink);
});

test('Firefox: a round-trip time below 1 ms is 0; before the first check it is unknown', async () => {
  const readPair = (figures: object) => readLink([...candidates.slice(0, 3), { ...candidates[3]!, ...figures }, { id: 'transport', type: 'transport', selectedCandidatePairId: 'pair' }]);
  expect((await readPair({ currentRoundTripTime: 0, responsesReceived: 3 })).rtt_ms).toBe(0);
  expect(await readPair({ currentRoundTripTime: 0, responsesReceived: 0 })).not.toHaveProperty('rtt_ms');
  expect(await readPair({ currentRoundTripTime: undefined, responsesReceived: 3 })).not.toHaveProperty('rtt_ms');
});

test('a figure that the browser does not report is absent, never 0', async () => {
  // Firefox before 142: the pair has no time.
  const [local, , , { currentRoundTripTime: _, ...pair }] = candidates as [Stat, Stat, Stat, Stat];
  const before = await readLink([local, pair, { ...video, mid: '0' }]);
  expect(before).not.toHaveProperty('rtt_ms');
  expect(before.streams).toHaveLength(1);
  for (const name of ['rtt_ms', 'loss']) expect(before.streams[0]).not.toHaveProperty(name);
  // The first report of the receiver makes both known; the time of the link stays unknown.
  const after = await readLink([local, pair, { ...video, mid: '0' }, remote]);
  expect(after).not.toHaveProperty('rtt_ms');
  expect(after.streams[0]).toMatchObject({ rtt_ms: 30, loss: 0 });
});
