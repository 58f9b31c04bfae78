// Two peer connections in one page exchange data through the server's TURN relay only.
import { expect, test } from '@playwright/test';
import { serve, type Server } from './server.ts';

let server: Server;

test.beforeAll(async () => {
  server = await serve();
});

test.afterAll(async () => {
  await server?.stop();
});

const metric = async (name: string): Promise<number> => {
  const text = await (await fetch(`${server.url}/metrics`)).text();
  return Number(text.split('\n').find((line) => line.startsWith(`${name} `))?.split(' ')[1]);
};

for (const transport of ['udp', 'tcp'] as const) {
  test(`two peers exchange data through TURN over ${transport}`, async ({ page }) => {
    const before = await metric('millrace_turn_datagrams_total{to="peers"}');
    await page.goto(`${server.url}/v1/info`);
    const got = await page.evaluate(async (transport) => {
      const offered = (await (await fetch('/v1/turn', { method: 'POST' })).json()) as { ice_servers: (RTCIceServer & { urls: string[] })[]; ttl_s: number };
      const iceServers = offered.ice_servers.map((ice) => ({ ...ice, urls: ice.urls.filter((one) => one.startsWith('turn:') && one.endsWith(`transport=${transport}`)) }));
      const [a, b] = [0, 1].map(() => new RTCPeerConnection({ iceServers, iceTransportPolicy: 'relay' })) as [RTCPeerConnection, RTCPeerConnection];
      const candidates: string[] = [];
      const errors: string[] = [];
      for (const [one, other] of [[a, b], [b, a]] as const) {
        one.onicecandidate = ({ candidate }) => {
          if (candidate?.candidate) candidates.push(candidate.candidate);
          void other.addIceCandidate(candidate ?? undefined);
        };
        one.onicecandidateerror = ({ errorCode, errorText, url }) => errors.push(`${url}: ${errorCode} ${errorText}`);
      }
      const sent = Array.from({ length: 200 }, (_, i) => `message ${i} ${'x'.repeat(i * 20)}`);
      const channel = a.createDataChannel('test');
      const echoed = new Promise<string[]>((resolve, reject) => {
        const back: string[] = [];
        const late = setTimeout(() => reject(new Error(`${back.length} came back in 20 s; ${a.iceConnectionState}; ${candidates.join('; ')}; ${errors.join('; ')}`)), 20_000);
        b.ondatachannel = ({ channel: other }) => (other.onmessage = ({ data }: MessageEvent<string>) => other.send(data));
        channel.onopen = () => sent.forEach((message) => channel.send(message));
        channel.onmessage = ({ data }: MessageEvent<string>) => {
          if (back.push(data) < sent.length) return;
          clearTimeout(late);
          resolve(back);
        };
      });
      await a.setLocalDescription();
      await b.setRemoteDescription(a.localDescription!);
      await b.setLocalDescription();
      await a.setRemoteDescription(b.localDescription!);
      const back = await echoed;
      const stats = [...((await a.getStats()) as unknown as Map<string, Record<string, unknown>>).values()];
      const side = (id: unknown) => stats.find((stat) => stat.id === id);
      const pair = side(stats.find((stat) => stat.type === 'transport')?.selectedCandidatePairId);
      const [local, remote] = [side(pair?.localCandidateId), side(pair?.remoteCandidateId)];
      a.close();
      b.close();
      return { isSame: back.join() === sent.join(), kinds: [local?.candidateType, remote?.candidateType], relayed: local?.relayProtocol, candidates, ttl_s: offered.ttl_s };
    }, transport);
    expect(got.isSame, 'all of it came back, in order').toBe(true);
    expect(got.kinds).toEqual(['relay', 'relay']);
    expect(got.relayed).toBe(transport);
    expect(got.ttl_s).toBeGreaterThan(600);
    expect(got.candidates.every((candidate) => candidate.includes(' typ relay ')), got.candidates.join('\n')).toBe(true);
    expect(await metric('millrace_turn_datagrams_total{to="peers"}')).toBeGreaterThan(before + 200);
    await expect.poll(() => metric('millrace_turn_allocations'), { message: 'closed connections give their relays back' }).toBe(0);
  });
}
