// MQTT.js, a client of others, over TCP and WebSocket, beside this client.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect as open, connectAsync, type IPublishPacket, type MqttClient } from 'mqtt';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { millrace } from '../src/index.js';
import { traced } from '../src/trace.js';
import { binary, startMillrace, type RunningServer } from './millrace.js';

let server: RunningServer;
let port: number;
let clients: { close(): unknown }[] = [];

beforeAll(async () => {
  port = await freePort();
  server = await startMillrace([`mqtt.listen=127.0.0.1:${port}`]);
});
afterAll(() => server.stop());
afterEach(async () => {
  await Promise.all(clients.map((client) => client.close()));
  clients = [];
});

/** Returns a port that was free a moment ago. */
function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address() as AddressInfo;
      server.close(() => resolve(port));
    });
  });
}

const urls = { tcp: () => `mqtt://127.0.0.1:${port}`, websocket: () => `${server.url.replace('http', 'ws')}/mqtt` };

async function connect(url: string, options: object): Promise<MqttClient> {
  const client = await connectAsync(url, { reconnectPeriod: 0, ...options }, false);
  clients.push({ close: () => client.endAsync(true) });
  return client;
}

/** The next `count` messages of a client, as `TOPIC PAYLOAD`. */
function messages(client: MqttClient, count: number): Promise<string[]> {
  const seen: string[] = [];
  return new Promise((resolve) => {
    client.on('message', (topic, payload) => {
      seen.push(`${topic} ${payload}`);
      if (seen.length === count) resolve(seen);
    });
  });
}

describe('with TLS', () => {
  const folder = mkdtempSync(join(tmpdir(), 'millrace-mqtt-'));
  let secure: RunningServer;
  let securePort: number;
  beforeAll(async () => {
    execFileSync(binary(), ['cert', 'dev', '--dir', folder]);
    securePort = await freePort();
    const files = [`tls.cert=${folder}/cert.pem`, `tls.key=${folder}/key.pem`];
    secure = await startMillrace([`mqtt.listen=127.0.0.1:${securePort}`, ...files]);
  });
  afterAll(async () => {
    await secure.stop();
    rmSync(folder, { recursive: true });
  });

  test.each(['tcp', 'websocket'])('MQTT.js publishes and reads over %s', async (name) => {
    const url = name === 'tcp' ? `mqtts://127.0.0.1:${securePort}` : `${secure.url.replace('https', 'wss')}/mqtt`;
    await expect(connect(url, {}), 'without the authority').rejects.toThrow(/certificate/);
    const client = await connect(url, { protocolVersion: 5, ca: readFileSync(`${folder}/ca.pem`) });
    await client.subscribeAsync(`secure/${name}`, { qos: 1 });
    const received = messages(client, 1);
    await client.publishAsync(`secure/${name}`, 'encrypted', { qos: 1 });
    expect(await received).toEqual([`secure/${name} encrypted`]);
  });
});

describe.each(Object.entries(urls))('over %s', (name, url) => {
  test.each([4, 5] as const)('MQTT.js publishes and reads with version %i', async (protocolVersion) => {
    const client = await connect(url(), { protocolVersion });
    const topic = `mqtt/${name}/${protocolVersion}`;
    await client.subscribeAsync(`${topic}/+`, { qos: 2 });
    const received = messages(client, 3);
    for (const qos of [0, 1, 2] as const) await client.publishAsync(`${topic}/${qos}`, `quality ${qos}`, { qos });
    expect(await received).toEqual([0, 1, 2].map((qos) => `${topic}/${qos} quality ${qos}`));
  });

  test('a message goes from MQTT.js to this client and back', async () => {
    const mr = millrace(server.url);
    clients.push(mr);
    const device = await connect(url(), { protocolVersion: 5 });
    await device.subscribeAsync(`cars/${name}/commands`, { qos: 1 });
    const commands = messages(device, 1);
    const channel = mr.subscribe(`cars/${name}/telemetry`, { from: 'earliest' });
    await device.publishAsync(`cars/${name}/telemetry`, '{"speed":87}', { qos: 1 });
    for await (const { data } of channel) {
      expect(data).toEqual({ speed: 87 });
      break;
    }
    await mr.publish(`cars/${name}/commands`, 'lights on');
    expect(await commands).toEqual([`cars/${name}/commands lights on`]);
  });

  test('a trace context goes from MQTT.js to this client and back', async () => {
    const context = (span: number): string => `00-4bf92f3577b34da6a3ce929d0e0e4736-${String(span).padStart(16, '0')}-01`;
    const mr = traced(millrace(server.url), () => context(1));
    clients.push(mr);
    const device = await connect(url(), { protocolVersion: 5 });
    const topic = `traced/${name}`;
    await device.subscribeAsync(`${topic}/commands`, { qos: 1 });
    const received = new Promise<IPublishPacket>((resolve) => device.on('message', (_topic, _payload, packet) => resolve(packet)));
    await mr.publish(`${topic}/commands`, 'lights on');
    expect((await received).properties?.userProperties).toEqual({ traceparent: context(1) });
    const userProperties = { traceparent: context(2), unit: 'km/h' };
    await device.publishAsync(`${topic}/telemetry`, '87', { qos: 1, properties: { userProperties } });
    expect((await mr.history(`${topic}/telemetry`)).map(({ trace }) => trace)).toEqual([context(2)]);
  });

  test('MQTT.js keeps its properties and its session', async () => {
    const options = { protocolVersion: 5, clean: false, clientId: `reader-${name}`, properties: { sessionExpiryInterval: 60 } };
    const first = await connect(url(), options);
    await first.subscribeAsync(`session/${name}`, { qos: 1 });
    await first.endAsync();
    const writer = await connect(url(), { protocolVersion: 5 });
    const properties = { userProperties: { unit: 'km/h' }, contentType: 'text/plain' };
    await writer.publishAsync(`session/${name}`, 'while away', { qos: 1, properties });
    // The message may arrive together with the answer to CONNECT, so the listener comes first.
    const second = open(url(), { ...options, reconnectPeriod: 0 } as object);
    clients.push({ close: () => second.endAsync(true) });
    const packet = await new Promise<IPublishPacket>((resolve) => second.on('message', (_topic, _payload, packet) => resolve(packet)));
    expect(String(packet.payload)).toBe('while away');
    expect(packet.properties).toMatchObject({ userProperties: { unit: 'km/h' }, contentType: 'text/plain' });
  });
});
