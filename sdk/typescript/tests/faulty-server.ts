// A server that implements docs/reference/protocol.md and fails on command: cuts, silence, refusals. server.test.ts
// tests the behavior of the real server.
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { WebSocketServer, type WebSocket } from 'ws';

interface Publication {
  offset: number;
  time: number;
  key?: string;
  data: unknown;
  encoding?: 'base64';
}

interface Log {
  epoch: string;
  items: Publication[];
  next: number;
}

interface Answer {
  position: string;
  messages: object[];
  gap?: { from: string; to: string };
}

/** A position, `earliest`, `now` or a time in ms. */
type Since = string;

export class FaultyServer {
  readonly url: string;
  readonly requests: IncomingMessage[] = [];
  /** Session commands with their names, oldest first. */
  readonly commands: { name: string; body: any }[] = [];
  /** Returns the error status for a request, or undefined to answer normally. */
  refuse: (request: IncomingMessage) => number | undefined = () => undefined;
  /** Extra headers of a refusal. */
  refusalHeaders: Record<string, string> = {};
  /** Sends nothing more on any connection. The connections stay open. */
  mute = false;
  /** Drops the replies to publications. The publications are stored, but the publisher receives no reply. */
  muteAcks = false;
  pingMs = 25_000;
  readonly #logs = new Map<string, Log>();
  readonly #keys = new Map<string, string>();
  readonly #sockets = new Set<Socket>();
  readonly #readers = new Set<() => void>();
  readonly #sessions = new Set<WebSocket>();
  readonly #server: Server;

  private constructor(server: Server) {
    this.#server = server;
    this.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    server.on('connection', (socket) => {
      this.#sockets.add(socket);
      socket.on('close', () => this.#sockets.delete(socket));
    });
    server.on('request', (request, response) => void this.#http(request, response));
    const sockets = new WebSocketServer({ noServer: true, handleProtocols: (names) => [...names][0] ?? false });
    server.on('upgrade', (request, socket, head) => {
      this.requests.push(request);
      const status = this.refuse(request);
      if (status) return socket.end(`HTTP/1.1 ${status} No\r\nContent-Length: 0\r\n\r\n`);
      if (this.mute) return;
      sockets.handleUpgrade(request, socket, head, (ws) => this.#session(ws));
    });
  }

  static async start(): Promise<FaultyServer> {
    const server = createServer();
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    return new FaultyServer(server);
  }

  async stop(): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  /** Breaks every connection without notice. */
  cut(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  get connections(): number {
    return this.#sockets.size;
  }

  drain(afterMs: number): void {
    for (const session of this.#sessions) session.send(JSON.stringify({ push: 'drain', after_ms: afterMs }));
  }

  publish(channel: string, data: unknown, more: { key?: string; encoding?: 'base64' } = {}): string {
    const log = this.#log(channel);
    log.items.push({ offset: log.next++, time: Date.now(), data, ...more });
    for (const wake of [...this.#readers]) wake();
    return `${log.epoch}:${log.next - 1}`;
  }

  /** Drops all but the newest `keep` publications. */
  trim(channel: string, keep: number): void {
    const log = this.#log(channel);
    log.items = keep ? log.items.slice(-keep) : [];
  }

  #log(channel: string): Log {
    let log = this.#logs.get(channel);
    if (!log) this.#logs.set(channel, (log = { epoch: `e${this.#logs.size}`, items: [], next: 1 }));
    return log;
  }

  /** Returns the publications after `since`, and the reader's new position. */
  #read(channel: string, since: Since, limit = 1000): Answer {
    const { epoch, items, next } = this.#log(channel);
    const first = items[0]?.offset ?? next;
    let offset = since === 'now' ? next - 1 : since === 'earliest' ? first - 1 : -1;
    let gap;
    if (/^\d+$/.test(since)) offset = (items.find(({ time }) => time > Number(since))?.offset ?? next) - 1;
    else if (offset < 0) {
      const [wasEpoch, was] = since.split(':') as [string, string];
      offset = Number(was);
      if (wasEpoch !== epoch || offset < first - 1) {
        offset = first - 1;
        gap = { from: since, to: `${epoch}:${offset}` };
      }
    }
    const found = items.filter((item) => item.offset > offset).slice(0, limit);
    const position = `${epoch}:${found.at(-1)?.offset ?? offset}`;
    const messages = found.map(({ offset: at, ...rest }) => ({ channel, position: `${epoch}:${at}`, ...rest }));
    return { position, messages, ...(gap && { gap }) };
  }

  async #http(request: IncomingMessage, response: ServerResponse): Promise<void> {
    this.requests.push(request);
    const url = new URL(request.url!, this.url);
    const query = url.searchParams;
    response.setHeader('Access-Control-Allow-Origin', '*');
    response.setHeader('Access-Control-Allow-Headers', '*');
    response.setHeader('Access-Control-Expose-Headers', '*');
    if (request.method === 'OPTIONS') return void response.end();
    const status = this.refuse(request);
    if (status) return void response.writeHead(status, this.refusalHeaders).end();
    if (this.mute) return;
    const json = (position: string | undefined, body: unknown): void => {
      if (position) response.setHeader('Millrace-Position', position);
      if (body === undefined) response.writeHead(204).end();
      else response.setHeader('Content-Type', 'application/json').end(JSON.stringify(body));
    };
    const channel = url.pathname.replace(/^\/v1\/(channels|presence)\//, '');
    if (request.method === 'POST') {
      const chunks: Buffer[] = [];
      for await (const chunk of request) chunks.push(chunk as Buffer);
      const body = Buffer.concat(chunks);
      const type = request.headers['content-type'] ?? '';
      const bytes = type.includes('octet-stream');
      const data = bytes ? body.toString('base64') : type.startsWith('text') ? String(body) : JSON.parse(String(body));
      const position = this.#once(`${channel} ${request.headers['idempotency-key']}`, () => this.publish(channel, data, bytes ? { encoding: 'base64' } : {}));
      if (!this.muteAcks) json(position, { position });
    } else if (url.pathname.startsWith('/v1/presence/')) json(undefined, { channel, count: this.#readers.size });
    else if (url.pathname === '/v1/info') json(undefined, {});
    else if (url.pathname.startsWith('/v1/channels/')) {
      const page = this.#read(channel, query.get('since') ?? 'now', Number(query.get('limit') ?? 100));
      json(page.position, page.messages.length || page.gap ? page : undefined);
    } else await this.#stream(request, response, query, json);
  }

  async #stream(request: IncomingMessage, response: ServerResponse, query: URLSearchParams, json: (position: string | undefined, body: unknown) => void): Promise<void> {
    const at = new Map<string, string>(query.getAll('channel').map((item) => item.split('@') as [string, string]).map(([name, since]) => [name, since ?? query.get('since') ?? 'now']));
    const list = (): string => [...at].map(([name, position]) => `${name}@${position}`).join();
    const take = (): [string, Answer][] =>
      [...at].map(([name, since]) => {
        const page = this.#read(name, since);
        at.set(name, page.position);
        return [name, page];
      });
    const accept = request.headers.accept;
    if (accept === 'application/json') {
      let pages = take();
      const some = (): boolean => pages.some(([, page]) => page.messages.length || page.gap);
      if (!some() && query.has('wait')) {
        await this.#change(Number(query.get('wait')) * 1000, response);
        pages = take();
      }
      const gaps = pages.filter(([, page]) => page.gap).map(([name, page]) => ({ channel: name, ...page.gap }));
      json(list(), some() ? { positions: Object.fromEntries(at), messages: pages.flatMap(([, page]) => page.messages), gaps } : undefined);
      return;
    }
    const sse = accept === 'text/event-stream';
    response.setHeader('Content-Type', accept!);
    for (const [name, since] of at) if (!since.includes(':')) at.set(name, this.#read(name, since, 0).position);
    response.write(sse ? `retry: 2000\nid: ${list()}\n\n` : `${JSON.stringify({ positions: Object.fromEntries(at) })}\n`);
    while (!response.closed && !response.destroyed) {
      if (!this.mute) {
        for (const [name, { gap, messages }] of take()) {
          if (gap) response.write(sse ? `event: gap\ndata: ${JSON.stringify({ channel: name, ...gap })}\n\n` : `${JSON.stringify({ channel: name, gap })}\n`);
          for (const message of messages) response.write(sse ? `id: ${list()}\ndata: ${JSON.stringify(message)}\n\n` : `${JSON.stringify(message)}\n`);
        }
      }
      await this.#change(60_000, response);
    }
  }

  /** Settles at the next publication, after `ms`, or when the reader disconnects. */
  #change(ms: number, response: ServerResponse): Promise<void> {
    return new Promise((resolve) => {
      const done = (): void => {
        clearTimeout(timer);
        this.#readers.delete(done);
        resolve();
      };
      const timer = setTimeout(done, ms);
      this.#readers.add(done);
      response.once('close', done);
    });
  }

  #once(key: string, publish: () => string): string {
    const before = this.#keys.get(key);
    if (before) return before;
    const position = publish();
    this.#keys.set(key, position);
    return position;
  }

  #session(ws: WebSocket): void {
    this.#sessions.add(ws);
    const at = new Map<string, string>();
    const send = (what: object): void => {
      if (!this.mute) ws.send(JSON.stringify(what));
    };
    const deliver = (): void => {
      if (this.mute) return;
      for (const [channel, since] of at) {
        const { position, messages, gap } = this.#read(channel, since);
        at.set(channel, position);
        if (gap) send({ push: 'gap', channel, ...gap });
        for (const message of messages) send({ push: 'message', ...message });
      }
    };
    this.#readers.add(deliver);
    ws.on('close', () => {
      this.#readers.delete(deliver);
      this.#sessions.delete(ws);
    });
    send({ push: 'connected', ping_ms: this.pingMs, message_bytes_max: 1 << 20, time: Date.now() });
    ws.on('message', (raw) => {
      const { id, ...command } = JSON.parse(String(raw)) as { id: number };
      const [name, body] = Object.entries(command)[0] as [string, any];
      this.commands.push({ name, body });
      const ok = (value: object): void => send({ id, ok: value });
      if (name === 'subscribe') {
        const page = this.#read(body.channel, body.since ?? 'now');
        at.set(body.channel, body.since?.includes(':') ? body.since : this.#read(body.channel, body.since ?? 'now', 0).position);
        ok({ channel: body.channel, position: at.get(body.channel), recovered: !page.gap, time: Date.now() });
        deliver();
      } else if (name === 'unsubscribe') ok({ gone: at.delete(body.channel) });
      else if (name === 'publish') {
        const position = this.#once(`${body.channel} ${body.idempotency_key}`, () => this.publish(body.channel, body.data, { encoding: body.encoding }));
        if (!this.muteAcks) ok({ position });
      } else if (name === 'history') ok(this.#read(body.channel, body.since ?? 'earliest', body.limit));
      else if (name === 'presence') ok({ count: this.#readers.size });
      else if (name === 'ping') ok({ time: Date.now() });
    });
  }
}

/** Settles when `condition` holds. Fails after `ms` with an error that contains `what`. */
export async function until(condition: () => unknown, what: string, ms = 8000): Promise<void> {
  const end = Date.now() + ms;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`waited ${ms} ms in vain for: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
