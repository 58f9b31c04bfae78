import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { WebSocket } from 'ws';
import { millrace, type ConnectOptions, type Event, type TransportName } from '../src/index.js';
import { FaultyServer, until } from './faulty-server.js';

const ALL: readonly TransportName[] = ['websocket', 'http-stream', 'sse', 'long-poll', 'poll'];
let server: FaultyServer;
let clients: { close(): Promise<void> }[] = [];

beforeEach(async () => {
  server = await FaultyServer.start();
});

afterEach(async () => {
  for (const client of clients) await client.close();
  clients = [];
  await server.stop();
});

function connect(options: ConnectOptions = {}) {
  const client = millrace(server.url, { WebSocket, pollMs: 20, retry: { min: 5, max: 50 }, ...options });
  clients.push(client);
  return client;
}

const numbers = (events: readonly Event[]): unknown[] => events.map(({ data }) => data);
const upTo = (n: number): number[] => Array.from({ length: n }, (_, i) => i);

describe.each(ALL)('%s', (transport) => {
  test('ten cuts cause no loss and no duplicates', async () => {
    const mr = connect({ transports: [transport] });
    const got: Event[] = [];
    const car = mr.subscribe('cars/1');
    car.on((event) => got.push(event));
    await car.ready;
    for (let n = 0; n < 100; n++) {
      server.publish('cars/1', n);
      // A cut may come before the events that were sent. The first one must not be delivered as a replay.
      if (n === 0) await until(() => got.length === 1, 'the first event');
      if (n % 10 === 9) {
        server.cut();
        await until(() => mr.state.name === 'open' && got.length >= n, `${n} events`);
      }
    }
    await until(() => got.length >= 100, '100 events');
    expect(numbers(got)).toEqual(upTo(100));
    expect(got[0]).toMatchObject({ channel: 'cars/1', offset: 1n, position: 'e0:1', replayed: false });
    expect(car.gaps).toBe(0);
  });

  test('a gap is counted, or ends the subscription', async () => {
    const mr = connect({ transports: [transport] });
    const tolerant = mr.subscribe('cars/1');
    const strict = mr.subscribe('cars/1', { onGap: 'error' });
    const got: Event[] = [];
    tolerant.on((event) => got.push(event));
    await tolerant.ready;
    server.publish('cars/1', 0);
    await until(() => got.length === 1, 'the first event');
    server.refuse = () => 503;
    server.cut();
    await until(() => mr.state.name !== 'open', 'the cut');
    for (let n = 1; n < 6; n++) server.publish('cars/1', n);
    server.trim('cars/1', 1);
    server.refuse = () => undefined;
    await until(() => got.length === 2, 'the event after the gap');
    expect(numbers(got)).toEqual([0, 5]);
    expect(tolerant.lastGap).toEqual({ from: 'e0:1', to: 'e0:5' });
    expect([tolerant.gaps, mr.stats().gaps]).toEqual([1, 1]);
    const seen: unknown[] = [];
    const reading = (async () => {
      for await (const { data } of strict) seen.push(data);
    })();
    await expect(reading).rejects.toMatchObject({ code: 'gap' });
    expect(seen).toEqual([0]);
  });

  test('complaint 04: a repeated publication is published once', async () => {
    const mr = connect({ transports: [transport] });
    await mr.ready();
    server.muteAcks = true;
    const published = Promise.all([mr.publish('chat/1', { n: 1 }), mr.publish('chat/1', { n: 2 })]);
    await until(() => server.commands.filter(({ name }) => name === 'publish').length === 2 || server.requests.some(({ method }) => method === 'POST'), 'the publications');
    server.muteAcks = false;
    server.cut();
    const [one, two] = await published;
    expect([one.offset, two.offset]).toEqual([1n, 2n]);
    expect(numbers(await mr.history('chat/1'))).toEqual([{ n: 1 }, { n: 2 }]);
  });

  test('complaint 05: recovery works before the first message', async () => {
    server.publish('cars/1', 'before');
    const mr = connect({ transports: [transport] });
    const car = mr.subscribe('cars/1');
    expect(await car.ready).toEqual({ offset: 1n, position: 'e0:1', recovered: true });
    const got: Event[] = [];
    car.on((event) => got.push(event));
    for (let n = 0; n < 3; n++) {
      server.refuse = () => 503;
      server.cut();
      await until(() => mr.state.name !== 'open', 'the cut');
      server.publish('cars/1', n);
      server.refuse = () => undefined;
      await until(() => got.length === n + 1, `event ${n}`);
    }
    expect(numbers(got)).toEqual([0, 1, 2]);
    expect((await mr.publish('cars/1', 'up')).offset).toBe(5n);
  });
});
