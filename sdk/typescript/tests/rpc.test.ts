// Remote procedure calls, with a real server and a real back end.
import { createHmac } from 'node:crypto';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { WebSocket } from 'ws';
import { millrace, type ConnectOptions, type TransportName } from '../src/index.js';
import { until } from './faulty-server.js';
import { startMillrace, type RunningServer } from './millrace.js';

const SECRET = 'a secret of the hooks, 32 bytes.';
let server: RunningServer;
let backEnd: Server;
let calls: { method: string; params?: unknown; timeout_ms: number; closed: boolean }[] = [];
let clients: { close(): Promise<void> }[] = [];

/** Answers calls as an application does: verifies the signature, then runs the method. */
function startBackEnd(): Server {
  return createServer(async (request, response) => {
    let body = '';
    for await (const piece of request.setEncoding('utf8')) body += piece;
    const [, time, signature] = /^t=(\d+),v1=([0-9a-f]{64})$/.exec(String(request.headers['millrace-signature'])) ?? [];
    const expected = createHmac('sha256', SECRET).update(`${time}.${body}`).digest('hex');
    if (signature !== expected) return response.writeHead(401).end();
    const call = { ...JSON.parse(body), closed: false };
    response.on('close', () => (call.closed = !response.writableEnded));
    calls.push(call);
    const answers: Record<string, object> = {
      'math/sum': { result: (call.params as number[])?.reduce?.((a, b) => a + b, 0) },
      fail: { error: { code: 'no_car', detail: 'there is no such car' } },
    };
    const answer = answers[call.method];
    if (answer) response.end(JSON.stringify(answer));
  });
}

beforeAll(async () => {
  backEnd = startBackEnd();
  await new Promise<void>((resolve) => backEnd.listen(0, '127.0.0.1', resolve));
  const url = `http://127.0.0.1:${(backEnd.address() as AddressInfo).port}/`;
  server = await startMillrace([`hooks.secrets=${SECRET}`, `hooks.rpc=${url}`, 'hooks.timeout=20s']);
});
afterAll(async () => {
  backEnd.closeAllConnections();
  backEnd.close();
  await server?.stop();
});
afterEach(async () => {
  for (const each of clients) await each.close();
  clients = [];
  calls = [];
});

function connect(options: ConnectOptions = {}) {
  const made = millrace(server.url, { WebSocket, pollMs: 20, ...options });
  clients.push(made);
  return made;
}

describe.each<TransportName>(['websocket', 'http-stream', 'sse', 'long-poll', 'poll'])('%s', (transport) => {
  test('returns the result, or the error of the back end', async () => {
    const mr = connect({ transports: [transport] });
    mr.subscribe('a');
    await mr.ready();
    expect(await mr.rpc<number>('math/sum', [1, 2])).toBe(3);
    await expect(mr.rpc('fail')).rejects.toMatchObject({ code: 'rejected', reason: 'no_car', message: 'there is no such car', retryable: false });
    await expect(mr.rpc('no method')).rejects.toMatchObject({ reason: 'bad_channel' });
    expect(calls.map(({ method, params }) => [method, params])).toEqual([['math/sum', [1, 2]], ['fail', undefined]]);
  });

  test('a deadline or an abort ends the call, which is sent once', async () => {
    const mr = connect({ transports: [transport] });
    mr.subscribe('a');
    await mr.ready();
    await expect(mr.rpc('slow', 1, { timeoutMs: 300 })).rejects.toMatchObject({ retryable: false });
    expect(calls[0]!.timeout_ms).toBe(300);
    const controller = new AbortController();
    const call = mr.rpc('slow', 2, { signal: controller.signal });
    await until(() => calls.length === 2, 'the second call');
    controller.abort();
    await expect(call).rejects.toMatchObject({ code: 'aborted' });
    await until(() => calls[0]!.closed, 'the first call is withdrawn');
    expect(calls.length).toBe(2);
  });
});

test('a call that loses its connection rejects and is not repeated', async () => {
  const mr = connect({ transports: ['websocket'] });
  await mr.ready();
  const call = mr.rpc('slow');
  await until(() => calls.length === 1, 'the call');
  await mr.close();
  await expect(call).rejects.toMatchObject({ name: 'MillraceError' });
  await until(() => calls[0]!.closed, 'the call is withdrawn');
});
