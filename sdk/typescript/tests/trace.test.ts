// Trace contexts against the real server, over all transports that Node has. browser/browser.test.ts has data-channel,
// and mqtt.test.ts has MQTT.
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { WebSocket } from 'ws';
import { millrace, type ConnectOptions, type Event, type TransportName } from '../src/index.js';
import { traced } from '../src/trace.js';
import { until } from './faulty-server.js';
import { startMillrace, type RunningServer } from './millrace.js';

let server: RunningServer;
let clients: { close(): Promise<void> }[] = [];
let channels = 0;

beforeAll(async () => {
  server = await startMillrace();
});
afterAll(() => server?.stop());
afterEach(async () => {
  for (const each of clients) await each.close();
  clients = [];
});

function connect(options: ConnectOptions = {}) {
  const made = millrace(server.url, { WebSocket, pollMs: 20, ...options });
  clients.push(made);
  return made;
}

const fresh = (): string => `traced/${++channels}`;
const context = (span: number): string => `00-4bf92f3577b34da6a3ce929d0e0e4736-${String(span).padStart(16, '0')}-01`;

describe.each<TransportName>(['websocket', 'http-stream', 'sse', 'long-poll', 'poll'])('%s', (transport) => {
  test('context travels from publish to callback', async () => {
    const channel = fresh();
    const reader = connect({ transports: [transport] });
    const got: Event[] = [];
    reader.subscribe(channel).on((event) => got.push(event));
    const subscribed = reader.subscribe(channel);
    await subscribed.ready;
    let running: string | undefined = context(1);
    const publisher = traced(connect({ transports: [transport] }), () => running);
    await publisher.publish(channel, { n: 1 });
    await publisher.publish(channel, { n: 2 }, { trace: context(2), key: 'k', ttl: 60 });
    running = undefined;
    await publisher.publish(channel, { n: 3 });
    await publisher.publish(channel, { n: 4 }, { trace: 'malformed' });
    await until(() => got.length === 4, 'four events');
    expect(got.map(({ trace }) => trace)).toEqual([context(1), context(2), undefined, undefined]);
    expect([got[1]!.key, got[1]!.data]).toEqual(['k', { n: 2 }]);
    const past = await reader.history(channel);
    expect(past.map(({ trace }) => trace)).toEqual([context(1), context(2), undefined, undefined]);
  });
});

test('other functions of a traced client are those of the client', async () => {
  const mr = connect();
  const both = traced(mr, () => context(3));
  await both.ready();
  expect(both.state).toEqual(mr.state);
  expect(both.stats().transport).toBe(mr.stats().transport);
  const channel = fresh();
  await both.publish(channel, 'x');
  expect((await both.history(channel))[0]!.trace).toBe(context(3));
});
