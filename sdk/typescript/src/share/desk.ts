// The leader's side of the links: one session per tab. A tab speaks the protocol of a session (docs/reference/
// protocol.md, "Sessions") with the leader instead of with the server. The leader carries out all commands over its
// own connection.
import type { Core } from '../client.js';
import { MillraceError, refused, toError } from '../errors.js';
import type { Commands, Draft, Wanted } from '../link.js';
import { checkChannel } from '../position.js';
import type { Client, TransportName } from '../types.js';
import { matcher } from '../wildcards.js';
import { encodeError, encodeState, type Draft as Sent, type Message } from './messages.js';
import { isPattern, type Reader, type Relay, type StartedAt } from './relay.js';

/** Maximum number of tabs that one leader serves. */
export const TABS_MAX = 64;
/**
 * Texts, and UTF-16 units of texts, that may be on their way to a tab. If a tab does not read, for example because it
 * is frozen, its link is ended. The tab opens a new one when it has read what was sent, and resumes.
 */
export const UNREAD_MAX = 4096;
export const UNREAD_CHARS_MAX = 1 << 25;
/** Unanswered commands of one tab, and UTF-16 units in them. */
export const COMMANDS_MAX = 4096;
export const COMMANDS_CHARS_MAX = 1 << 26;
/** Subscriptions of one tab. */
export const CHANNELS_MAX = 1000;

export interface DeskHost {
  /** Sends a message to a tab. */
  send(tab: string, message: Sent): void;
  /** Calls `gone` when a tab has ended. Returns a function that ends the watch. */
  watch(tab: string, gone: () => void): () => void;
  /** The tab opened a link, or its link has ended. */
  linked(tab: string, open: boolean): void;
}

export class Desk {
  readonly #sessions = new Map<string, Session>();

  constructor(
    readonly host: DeskHost,
    readonly upstream: Pick<Core, 'ask' | 'state' | 'stats' | 'use' | 'wake'>,
    /** The relay of channels. */
    readonly relay: Relay,
    /** Returns the relay of patterns, and opens its connection. */
    readonly patterns: () => Relay,
  ) {}

  get tabs(): number {
    return this.#sessions.size;
  }

  open(tab: string, link: string): void {
    this.#sessions.get(tab)?.end();
    if (this.#sessions.size >= TABS_MAX) return this.host.send(tab, { kind: 'full', link });
    this.host.linked(tab, true);
    const session = new Session(tab, link, this, () => {
      if (this.#sessions.get(tab) !== session) return;
      this.#sessions.delete(tab);
      this.host.linked(tab, false);
      this.report();
    });
    this.#sessions.set(tab, session);
    this.report();
    session.push(JSON.stringify({ push: 'connected', ping_ms: 1e9, message_bytes_max: 1 << 24 }));
  }

  handleMessage(message: Message): void {
    const session = this.#sessions.get(message.from);
    if (!session || session.link !== (message as { link?: string }).link) return;
    if (message.kind === 'up') session.handleText(message.text);
    else if (message.kind === 'ack') session.handleAck(message.count);
    else if (message.kind === 'end') session.end();
  }

  /** Reports the state of the connection to every tab. */
  report(): void {
    const { state, stats } = { state: encodeState(this.upstream.state), stats: this.upstream.stats() };
    for (const { tab, link } of this.#sessions.values()) this.host.send(tab, { kind: 'upstream', link, state, stats, tabs: this.tabs });
  }

  /** Ends all links. */
  close(error?: MillraceError): void {
    const sessions = [...this.#sessions.values()];
    this.#sessions.clear();
    for (const session of sessions) session.end(error);
  }
}

class Session implements Reader {
  readonly #desk: Desk;
  readonly #onEnd: () => void;
  readonly #over = new AbortController();
  readonly #unwatch: () => void;
  /** Ids of the subscriptions that are not answered yet. */
  readonly #asked = new Map<string, number>();
  readonly #channels = new Set<string>();
  readonly #relays = new Set<Relay>();
  #commands = 0;
  #commandChars = 0;
  /** Lengths of the texts that the tab has not confirmed. */
  readonly #unread: number[] = [];
  #unreadChars = 0;
  #confirmed = 0;

  constructor(
    readonly tab: string,
    readonly link: string,
    desk: Desk,
    onEnd: () => void,
  ) {
    this.#desk = desk;
    this.#onEnd = onEnd;
    this.#unwatch = desk.host.watch(tab, () => this.end());
  }

  handleText(text: string): void {
    try {
      const { id, ...commands } = JSON.parse(text) as { id: number } & Record<string, never>;
      const [[command, body] = []] = Object.entries<Record<string, never>>(commands);
      if (!Number.isSafeInteger(id) || !command || !body) throw toError('not a command', 'protocol');
      this.#handle(id, command, body, text.length);
    } catch {
      // A tab of this version sends only commands.
      this.end(new MillraceError('network', 'the leading tab did not understand a command'));
    }
  }

  handleAck(count: number): void {
    for (; this.#confirmed < count && this.#unread.length; this.#confirmed++) this.#unreadChars -= this.#unread.shift()!;
  }

  started(channel: string, at: StartedAt): void {
    const id = this.#asked.get(channel);
    this.#asked.delete(channel);
    if (id !== undefined) this.#answer(id, { ok: { channel, ...at } });
    else this.#desk.host.send(this.tab, { kind: 'started', link: this.link, channel, time: at.time });
  }

  reads(channel: string): boolean {
    return this.#channels.has(channel);
  }

  push(text: string): void {
    if (this.#over.signal.aborted) return;
    this.#unread.push(text.length);
    this.#unreadChars += text.length;
    if (this.#unread.length > UNREAD_MAX || (this.#unread.length > 1 && this.#unreadChars > UNREAD_CHARS_MAX)) return this.end(new MillraceError('network', 'this tab did not read from the leading tab'));
    this.#desk.host.send(this.tab, { kind: 'down', link: this.link, text });
  }

  refused(channel: string, cause?: MillraceError): void {
    const id = this.#asked.get(channel);
    this.#asked.delete(channel);
    this.#channels.delete(channel);
    const error = refusalOf(cause ?? toError('the subscription has ended', 'aborted'));
    if (id !== undefined) this.#answer(id, { error });
    else this.push(JSON.stringify({ push: 'unsubscribed', channel, ...error }));
  }

  end(error?: MillraceError): void {
    if (this.#over.signal.aborted) return;
    this.#over.abort();
    this.#unwatch();
    this.#relays.forEach((relay) => relay.remove(this));
    this.#desk.host.send(this.tab, { kind: 'end', link: this.link, ...(error && { error: encodeError(error) }) });
    this.#onEnd();
  }

  #handle(id: number, command: string, body: Record<string, never>, chars: number): void {
    const { channel } = body as { channel?: string };
    if (command === 'subscribe') {
      if (this.#channels.size >= CHANNELS_MAX) return this.#answer(id, { error: refusalOf(refused({ code: 'too_many', detail: `more than ${CHANNELS_MAX} channels in one tab` })) });
      if (isPattern(channel!)) matcher(channel!);
      else checkChannel(channel!);
      this.#channels.add(channel!);
      this.#asked.set(channel!, id);
      const relay = isPattern(channel!) ? this.#desk.patterns() : this.#desk.relay;
      this.#relays.add(relay);
      relay.subscribe(this, body as unknown as Wanted);
    } else if (command === 'unsubscribe') {
      this.#channels.delete(channel!);
      this.#asked.delete(channel!);
      this.#relays.forEach((relay) => relay.unsubscribe(this, channel!));
      this.#answer(id, { ok: {} });
    } else void this.#ask(id, command, body, chars);
  }

  async #ask(id: number, command: string, body: Record<string, never>, chars: number): Promise<void> {
    if (this.#commands >= COMMANDS_MAX || this.#commandChars + chars > COMMANDS_CHARS_MAX) {
      const detail = `more than ${COMMANDS_MAX} requests or ${COMMANDS_CHARS_MAX} characters of this tab wait for the server; wait for some answers first`;
      return this.#answer(id, { error: refusalOf(refused({ code: 'too_many', detail })) });
    }
    this.#commands++;
    this.#commandChars += chars;
    const { upstream } = this.#desk;
    try {
      let ok: unknown = {};
      if (command === 'use') await upstream.use((body as unknown as { channel: TransportName }).channel);
      else if (command === 'wake') upstream.wake();
      else ok = await upstream.ask(command as keyof Commands, (command === 'publish' ? draftOf(body) : command === 'ping' ? { channel: 'ping' } : body) as never, this.#over.signal);
      this.#answer(id, { ok });
    } catch (thrown) {
      this.#answer(id, { error: refusalOf(toError(thrown)) });
    } finally {
      this.#commands--;
      this.#commandChars -= chars;
    }
  }

  #answer(id: number, reply: object): void {
    this.push(JSON.stringify({ id, ...reply }));
  }
}

/** Returns whether the connection is a session, so that the server answers pings in the order of all commands. */
export const isSession = ({ stats }: Pick<Client, 'stats'>): boolean => /websocket|data-channel/.test(stats().transport ?? '');

/** Codes of the server that `refused` converts to the code of the error. */
const CODES: Readonly<Record<string, string>> = { timeout: 'timeout', network: 'unavailable', protocol: 'bad_json', auth: 'unauthorized' };

/** Returns an error as a session reports it. `refused` is the inverse. */
const refusalOf = ({ code, message, retryable, reason }: MillraceError): object => ({ code: CODES[code] ?? 'rejected', detail: message, retry: retryable, reason: reason ?? null });

/** Returns a publication as the client sends it. `send` of a session is the inverse. */
function draftOf({ data, encoding, ...draft }: Record<string, unknown>): Draft {
  if (draft['delete']) return draft as never;
  const payload = encoding
    ? { type: 'application/octet-stream', data: Uint8Array.from(atob(data as string), (c) => c.charCodeAt(0)) }
    : typeof data === 'string'
      ? { type: 'text/plain', data }
      : { type: 'application/json', data: JSON.stringify(data) };
  return { ...draft, ...payload } as unknown as Draft;
}
