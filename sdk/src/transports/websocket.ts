// A session over one WebSocket: `/v1/connect`, subprotocol `millrace.v1+json`. Source: docs/protocol.md, "WebSocket".
import { MillraceError, closeError, refused, toError, type Refusal } from '../errors.js';
import type { Draft, Link, LinkHost, Page, Transport } from '../link.js';
import type { Message } from '../subscription.js';
import type { Gap } from '../types.js';

const PROTOCOL = 'millrace.v1+json';
/** When a refused subscription that may be tried again is tried again, ms. */
const RETRY = 1000;

/**
 * Takes a reply. Not a promise: several messages can arrive in one turn, and a subscription must have started before the
 * message that follows its reply.
 */
type Done = (error: MillraceError | undefined, ok: any) => void;

class WebSocketLink implements Link {
  #socket: WebSocket | undefined;
  #open = false;
  #over = new AbortController();
  #ids = 0;
  #waiting = new Map<number, Done>();
  /** Channel to policy. */
  #reading = new Map<string, string>();
  #pingMs = 25_000;
  #bytesMax = 1 << 20;
  readonly #host: LinkHost;

  constructor(host: LinkHost) {
    this.#host = host;
    this.#connect().catch((thrown) => this.#end(toError(thrown)));
  }

  async #connect(): Promise<void> {
    const host = this.#host;
    const token = await host.token('connect', this.#over.signal);
    if (this.#over.signal.aborted) return;
    const since = Date.now();
    const protocols = token === undefined ? [PROTOCOL] : [PROTOCOL, `bearer.${token}`];
    const socket = new ((host.options.WebSocket ?? globalThis.WebSocket) as typeof WebSocket)(`${host.base.replace(/^http/, 'ws')}/v1/connect`, protocols);
    this.#socket = socket;
    let detail = '';
    // A close event follows; only Node's implementations say what went wrong.
    socket.onerror = (event) => (detail = (event as ErrorEvent).message ?? '');
    socket.onclose = ({ code, reason }) => this.#end(closeError(code, reason || detail));
    socket.onmessage = ({ data }) => {
      let said;
      try {
        said = JSON.parse(data);
      } catch {
        return this.#end(new MillraceError('protocol', 'a session speaks JSON'));
      }
      host.count(data.length, 0);
      if (said.push === 'connected') {
        this.#pingMs = said.ping_ms;
        this.#bytesMax = said.message_bytes_max;
        this.#open = true;
        host.say({ type: 'opened', rtt: Date.now() - since });
        this.changed();
        this.ping();
      }
      if (this.#open) host.say({ type: 'alive', withinMs: this.#pingMs });
      this.#hear(said);
    };
  }

  #hear(said: any): void {
    const host = this.#host;
    const { id } = said;
    if (id !== undefined) {
      const done = this.#waiting.get(id);
      this.#waiting.delete(id);
      done?.(said.error && refused(said.error as Refusal), said.ok);
    } else if (said.push === 'message') host.hub.message(said as Message);
    else if (said.push === 'gap') host.hub.gap(said.channel, said as Gap);
    else if (said.push === 'drain') host.say({ type: 'drain', afterMs: said.after_ms });
    else if (said.push === 'error') host.log('warn', `${said.code}: ${said.detail}`);
  }

  #send(command: string, body: object, done: Done): void {
    const id = ++this.#ids;
    const text = JSON.stringify({ id, [command]: body });
    this.#waiting.set(id, done);
    this.#socket!.send(text);
    this.#host.count(0, text.length);
  }

  changed(): void {
    if (!this.#open) return;
    const wanted = new Map(this.#host.hub.wanted().map((want) => [want.channel, want]));
    for (const [channel, policy] of this.#reading) {
      if (wanted.get(channel)?.policy === policy) continue;
      this.#reading.delete(channel);
      this.#send('unsubscribe', { channel }, () => {});
    }
    for (const [channel, { policy, since, positions }] of wanted) {
      if (this.#reading.has(channel)) continue;
      this.#reading.set(channel, policy);
      this.#send('subscribe', { channel, since, positions, policy }, (error, ok) => {
        if (!error) return this.#host.hub.started(channel, ok.position, ok.recovered ?? true, ok.time);
        if (this.#over.signal.aborted) return;
        if (!error.retryable) return this.#host.hub.refused(channel, error);
        setTimeout(() => {
          this.#reading.delete(channel);
          this.changed();
        }, RETRY);
      });
    }
  }

  ping(): void {
    if (!this.#open) return;
    const since = Date.now();
    this.#send('ping', {}, (error) => error ?? this.#host.rtt(Date.now() - since));
  }

  publish(draft: Draft): Promise<string> {
    const { data } = draft;
    const body = data instanceof Uint8Array ? { ...draft, data: toBase64(data), encoding: 'base64' } : draft;
    // A larger message would end the session (1009). In UTF-8 a UTF-16 unit takes up to three bytes; the envelope adds a few.
    const text = JSON.stringify(body);
    if (text.length * 3 + 50 > this.#bytesMax && new TextEncoder().encode(text).length + 50 > this.#bytesMax) {
      return Promise.reject(refused({ code: 'too_large', detail: `larger than ${this.#bytesMax} bytes` }));
    }
    return this.#ask('publish', body).then((ok) => ok.position);
  }

  page(channel: string, since: string, limit: number): Promise<Page> {
    return this.#ask('history', { channel, since, limit });
  }

  presence(channel: string): Promise<number> {
    return this.#ask('presence', { channel }).then((ok) => ok.count);
  }

  #ask(command: string, body: object): Promise<any> {
    return new Promise((resolve, reject) => this.#send(command, body, (error, ok) => (error ? reject(error) : resolve(ok))));
  }

  #end(error: MillraceError): void {
    if (this.#over.signal.aborted) return;
    this.close(error);
    this.#host.say({ type: 'closed', error });
  }

  close(error = new MillraceError('network', 'the connection was closed')): void {
    this.#over.abort();
    this.#open = false;
    const socket = this.#socket;
    if (socket) {
      socket.onmessage = socket.onclose = null;
      socket.close();
    }
    // What was not answered goes out again over the next link: those errors are worth another try, whatever ended this one.
    const lost = error.retryable ? error : new MillraceError('network', error.message);
    const waiting = [...this.#waiting.values()];
    this.#waiting.clear();
    for (const done of waiting) done(lost, undefined);
  }
}

function toBase64(bytes: Uint8Array): string {
  let text = '';
  for (let i = 0; i < bytes.length; i += 0x8000) text += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return btoa(text);
}

export const websocket: Transport = {
  name: 'websocket',
  usable: (options) => !!(options.WebSocket ?? globalThis.WebSocket),
  open: (host) => new WebSocketLink(host),
};
