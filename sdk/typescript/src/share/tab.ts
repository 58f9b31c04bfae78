// One tab of a group: takes part in the election, and opens one link to the leader. The leader has the connection to
// the server, and a desk that serves the links of all tabs, its own included.
import type { Core } from '../client.js';
import { MillraceError, toError } from '../errors.js';
import type { Hub } from '../hub.js';
import type { LinkHost, Transport } from '../link.js';
import { openSession, type Carrier } from '../transports/session.js';
import type { State, Stats, TransportName } from '../types.js';
import { Desk, isSession } from './desk.js';
import { Election, type ElectionHost, type Leader } from './election.js';
import { decode, decodeError, decodeState, VERSION, type Draft, type Message, type Upstream } from './messages.js';
import { Relay } from './relay.js';

/** Texts after which a tab confirms them, and UTF-16 units of texts. */
const ACK_EVERY = 256;
const ACK_CHARS = 1 << 20;

export interface Port {
  post(message: object): void;
  close(): void;
}

/** The functions of the browser that a tab uses. */
export interface Env {
  readonly id: string;
  now(): number;
  random(): number;
  /** Calls `fn` after `ms`. Returns a function that cancels the timer. */
  after(ms: number, fn: () => void): () => void;
  /** See Web Locks, `LockManager.request`. */
  lock(name: string, options: { readonly steal?: boolean; readonly signal?: AbortSignal }, held: () => Promise<void>): Promise<unknown>;
  /** Opens a BroadcastChannel. */
  port(name: string, receive: (data: unknown) => void): Port;
  /** Reports to `tab` when its page is hidden, frozen or kept for the Back button. Ends when `signal` aborts. */
  watchPage(tab: PageListener, signal: AbortSignal): void;
}

export interface PageListener {
  setVisible(visible: boolean): void;
  /** The page is being frozen, or left: another tab must lead. */
  suspend(): void;
  resume(): void;
}

/** The connection to the server. */
export type Connection = Pick<Core, 'ask' | 'state' | 'stats' | 'use' | 'wake' | 'onState' | 'ready' | 'close'>;

export interface TabHost {
  /** Settles with the name of the group, which is the same for all tabs that may share a connection. */
  group(): Promise<string>;
  /** Creates the connection of a leader. `widen` returns its hub. */
  connect(widen: (hub: Hub, changed: () => void) => Hub): Connection;
  /** The state of the leader's connection has changed. */
  changed(): void;
  /** A leader is known: open the link now. */
  wake(): void;
}

interface Link {
  readonly id: string;
  readonly host: LinkHost;
  readonly receive: (text: string) => void;
  readonly end: (error: MillraceError) => void;
  leader: Leader | undefined;
  received: number;
  receivedChars: number;
  confirmed: number;
}

export type Role = 'starting' | 'leader' | 'follower' | 'alone';

export class Tab implements PageListener {
  /** State of the leader's connection, if the link is open. */
  upstream: { readonly state: State; readonly stats: Stats; readonly tabs: number } | undefined;
  /** Why this tab has a connection of its own. */
  alone: string | undefined;
  readonly #env: Env;
  readonly #host: TabHost;
  readonly #election: Election;
  #name: string | undefined;
  #started = false;
  #suspended = false;
  #closed = false;
  #link: Link | undefined;
  #links = 0;
  #group: Port | undefined;
  /** Channel of this tab, and as leader the channels of the other tabs. */
  readonly #ports = new Map<string, Port>();
  #request: AbortController | undefined;
  /** Releases the lock of this tab. */
  readonly #alive = new AbortController();
  #isHeld = false;
  #cancelTimer: (() => void) | undefined;
  #leading: { readonly desk: Desk; readonly connections: Connection[] } | undefined;

  constructor(env: Env, host: TabHost) {
    this.#env = env;
    this.#host = host;
    const election: ElectionHost = {
      lock: (steal) => this.#lock(steal),
      unlock: () => this.#unlock(),
      post: (message) => this.#group?.post({ v: VERSION, from: env.id, ...message }),
      lead: () => this.#lead(),
      unlead: () => this.#unlead(),
      follow: () => this.#follow(),
    };
    this.#election = new Election(env.id, election, env.random);
  }

  get role(): Role {
    if (this.alone !== undefined) return 'alone';
    return this.#election.role === 'leader' ? 'leader' : this.#election.leader && this.upstream ? 'follower' : 'starting';
  }

  get epoch(): number {
    return this.#election.epoch;
  }

  /** The transport of this tab: a session with the leader. */
  readonly transport: Transport = {
    // This name appears only in logs.
    name: 'tab' as TransportName,
    open: (host) => openSession(host, (_, __, receive, end) => this.#dial(host, receive, end)),
  };

  setVisible(visible: boolean): void {
    this.#input(() => this.#election.setVisible(this.#env.now(), visible));
  }

  suspend(): void {
    this.#suspended = true;
    this.#input(() => this.#election.stop());
    this.#endLink(new MillraceError('network', 'the page was suspended'));
  }

  resume(): void {
    if (!this.#suspended || this.#closed) return;
    this.#suspended = false;
    if (this.#group) {
      if (!this.#isHeld) this.#hold();
      this.#input(() => this.#election.start(this.#env.now()));
    }
    this.#host.wake();
  }

  close(): void {
    if (this.#closed) return;
    this.#endLink();
    this.#input(() => this.#election.stop());
    this.#unlead();
    this.#closed = true;
    this.#alive.abort();
    this.#group?.close();
    this.#ports.forEach((port) => port.close());
    this.#ports.clear();
  }

  /** Joins the group when the client is first used. */
  async #start(): Promise<void> {
    if (this.#started) return;
    this.#started = true;
    try {
      this.#name = await this.#host.group();
    } catch (thrown) {
      this.#started = false;
      return this.#endLink(toError(thrown, 'network'));
    }
    if (!this.#closed) this.#hold();
  }

  /**
   * Holds the lock of this tab. The browser releases the lock when the tab ends; then the leader ends the link of the
   * tab.
   */
  #hold(): void {
    const { signal } = this.#alive;
    this.#isHeld = true;
    const held = (): Promise<void> => {
      if (!this.#closed && !this.#group) this.#join();
      return new Promise((resolve) => (signal.aborted ? resolve() : signal.addEventListener('abort', () => resolve())));
    };
    this.#env.lock(`${this.#name}:${this.#env.id}`, {}, held).catch((thrown: unknown) => {
      // The browser may take the locks of a page that it keeps for the Back button.
      this.#isHeld = false;
      if (!this.#group) this.#leadAlone(`Web Locks are not available: ${thrown}`);
    });
  }

  #join(): void {
    this.#group = this.#env.port(this.#name!, (data) => this.#receive(data));
    this.#port(this.#env.id);
    if (!this.#suspended) this.#input(() => this.#election.start(this.#env.now()));
  }

  #leadAlone(reason: string): void {
    this.alone = reason;
    this.#input(() => this.#election.stop());
    if (!this.#closed && !this.#leading) this.#lead();
    this.#follow();
  }

  /** Passes an input to the election, and sets the timer. */
  #input(act: () => void): void {
    act();
    this.#cancelTimer?.();
    const due = this.#election.pollTimeout();
    if (due < Infinity) this.#cancelTimer = this.#env.after(Math.max(0, due - this.#env.now()), () => this.#input(() => this.#election.handleTimeout(this.#env.now())));
  }

  #lock(steal: boolean): void {
    this.#request?.abort();
    const request = new AbortController();
    const { signal } = request;
    this.#request = request;
    const held = (): Promise<void> => {
      if (signal.aborted) return Promise.resolve();
      this.#input(() => this.#election.handleGranted(this.#env.now()));
      return new Promise((resolve) => (signal.aborted ? resolve() : signal.addEventListener('abort', () => resolve())));
    };
    // A request that steals cannot have a signal.
    this.#env.lock(this.#name!, steal ? { steal } : { signal }, held).catch(() => {
      if (!signal.aborted && this.#request === request) this.#input(() => this.#election.handleStolen(this.#env.now()));
    });
  }

  #unlock(): void {
    this.#request?.abort();
    this.#request = undefined;
  }

  #lead(): void {
    const { upstream, relay } = this.#connect();
    let second: { readonly upstream: Connection; readonly relay: Relay } | undefined;
    const patterns = (): Relay => {
      if (second) return second.relay;
      const opened = (second = this.#connect());
      const { connections } = this.#leading!;
      connections.push(opened.upstream);
      const off = opened.upstream.onState(handleState);
      opened.relay.onEmpty = () => {
        if (second !== opened) return;
        second = undefined;
        off();
        connections.splice(connections.indexOf(opened.upstream), 1);
        void opened.upstream.close();
      };
      return opened.relay;
    };
    const { id } = this.#env;
    const desk = new Desk(
      {
        send: (tab, message) => this.#toTab(tab, message),
        watch: (tab, gone) => (tab === id ? () => {} : this.#watch(tab, gone)),
        linked: (tab, open) => {
          if (open) upstream.ready().catch(() => {});
          else if (tab !== id) this.#closePort(tab);
        },
      },
      upstream,
      relay,
      patterns,
    );
    this.#leading = { desk, connections: [upstream] };
    const handleState = (state: State): void => {
      if (this.#leading?.desk !== desk) return;
      if (state.name !== 'closed') return desk.report();
      const { cause } = state;
      // The connection never opens again, for any tab: all have the same identity. But if the token of this tab has
      // changed its identity, the other tabs continue with their own tokens.
      const error = cause && new MillraceError(cause.code, cause.message, { ...cause, retryable: false });
      if (cause?.reason !== OTHER_IDENTITY) return desk.close(error);
      this.#endLink(error);
    };
    upstream.onState(handleState);
  }

  /** Creates a connection to the server, and the relay that is its hub. */
  #connect(): { readonly upstream: Connection; readonly relay: Relay } {
    let relay!: Relay;
    const upstream: Connection = this.#host.connect((_, changed) => {
      const answered = (): Promise<unknown> => (isSession(upstream) ? upstream.ask('ping', { channel: 'ping' }).catch(() => {}) : Promise.resolve());
      relay = new Relay(changed, answered);
      return relay.hub;
    });
    return { upstream, relay };
  }

  #unlead(): void {
    const { desk, connections = [] } = this.#leading ?? {};
    this.#leading = undefined;
    desk?.close(new MillraceError('network', 'the leading tab has changed'));
    for (const each of connections) void each.close();
  }

  /** The leader has changed. */
  #follow(): void {
    const leader = this.#leader();
    if (this.#link?.leader && (this.#link.leader.id !== leader?.id || this.#link.leader.epoch !== leader.epoch)) {
      this.#endLink(new MillraceError('network', 'the leading tab has changed'));
    }
    if (this.#link) this.#open(this.#link);
    else this.#host.wake();
  }

  #leader(): Leader | undefined {
    return this.alone !== undefined ? { id: this.#env.id, epoch: 0 } : this.#election.leader;
  }

  /** Opens the carrier of a session with the leader, as soon as there is one. */
  #dial(host: LinkHost, receive: (text: string) => void, end: (error: MillraceError) => void): Carrier {
    const link: Link = { id: `${this.#env.id}.${++this.#links}`, host, receive, end, leader: undefined, received: 0, receivedChars: 0, confirmed: 0 };
    this.#endLink();
    this.#link = link;
    if (!this.#closed) {
      void this.#start();
      this.#open(link);
    }
    return {
      send: (text) => this.#toLeader(link, { kind: 'up', link: link.id, text }),
      close: () => {
        if (this.#link === link) this.#endLink();
      },
    };
  }

  #open(link: Link): void {
    const leader = this.#leader();
    if (!leader || link.leader) return;
    link.leader = leader;
    const { id } = this.#env;
    if (leader.id === id) queueMicrotask(() => this.#link === link && this.#leading?.desk.open(id, link.id));
    else this.#group?.post({ v: VERSION, from: id, kind: 'open', to: leader.id, link: link.id });
  }

  /** Ends the link, and reports `error` to the client. */
  #endLink(error?: MillraceError): void {
    const link = this.#link;
    if (!link) return;
    this.#toLeader(link, { kind: 'end', link: link.id });
    this.#link = undefined;
    this.upstream = undefined;
    if (error) link.end(error);
  }

  /** Sends a message to the leader, on the channel of this tab. Messages of the leader to itself stay in the page. */
  #toLeader({ leader }: Link, message: Draft): void {
    if (!leader) return;
    const { id } = this.#env;
    const sent = { v: VERSION, from: id, ...message } as Message;
    const desk = this.#leading?.desk;
    if (leader.id === id) queueMicrotask(() => desk?.handleMessage(sent));
    else this.#port(id)?.post(sent);
  }

  /** Sends a message of the leader, on the channel of the tab. */
  #toTab(tab: string, message: Draft): void {
    const { id } = this.#env;
    const sent = { v: VERSION, from: id, ...message } as Message;
    if (tab === id) queueMicrotask(() => this.#handleDown(sent));
    else this.#port(tab)?.post(sent);
  }

  /** Returns the channel of a tab. */
  #port(tab: string): Port | undefined {
    if (this.#closed || this.#name === undefined) return undefined;
    let port = this.#ports.get(tab);
    if (!port) this.#ports.set(tab, (port = this.#env.port(`${this.#name}:${tab}`, (data) => this.#receive(data))));
    return port;
  }

  #closePort(tab: string): void {
    const port = this.#ports.get(tab);
    this.#ports.delete(tab);
    port?.close();
  }

  /** Receives a message of another tab. */
  #receive(data: unknown): void {
    const message = decode(data);
    if (!message || this.#closed || this.#suspended || this.alone !== undefined) return;
    switch (message.kind) {
      case 'who':
      case 'lead':
      case 'take':
      case 'resign':
        return this.#input(() => this.#election.handleMessage(this.#env.now(), message));
      case 'open':
        if (message.to === this.#env.id && this.#leading) {
          this.#port(message.from);
          this.#leading.desk.open(message.from, message.link);
        }
        return;
      case 'up':
      case 'ack':
        return this.#leading?.desk.handleMessage(message);
      case 'end':
        this.#leading?.desk.handleMessage(message);
        return this.#handleDown(message);
      default:
        return this.#handleDown(message);
    }
  }

  /** Handles a message of the leader to this tab. */
  #handleDown(message: Message): void {
    const link = this.#link;
    if (!link || message.from !== link.leader?.id || (message as { link?: string }).link !== link.id) return;
    if (message.from !== this.#env.id) this.#input(() => this.#election.handleLife(this.#env.now()));
    if (message.kind === 'down') {
      link.received++;
      link.receivedChars += message.text.length;
      link.receive(message.text);
      if (link.received - link.confirmed < ACK_EVERY && link.receivedChars < ACK_CHARS) return;
      link.confirmed = link.received;
      link.receivedChars = 0;
      this.#toLeader(link, { kind: 'ack', link: link.id, count: link.received });
    } else if (message.kind === 'started') {
      // Only for a subscription that has started. Its position stays as it is.
      const { hub } = link.host;
      const since = hub.wanted().find(({ channel }) => channel === message.channel)?.since;
      if (since) hub.started(message.channel, { position: since, time: message.time });
    } else if (message.kind === 'upstream') this.#handleUpstream(message);
    else if (message.kind === 'end') {
      this.#link = undefined;
      this.upstream = undefined;
      link.end(message.error ? decodeError(message.error) : new MillraceError('network', 'the leading tab ended the link'));
    } else if (message.kind === 'full') this.#leadAlone('too many tabs share the connection');
  }

  #handleUpstream({ state, stats, tabs }: Upstream): void {
    this.upstream = { state: decodeState(state), stats, tabs };
    this.#host.changed();
  }

  #watch(tab: string, gone: () => void): () => void {
    const over = new AbortController();
    const held = async (): Promise<void> => {
      if (!over.signal.aborted) gone();
    };
    this.#env.lock(`${this.#name}:${tab}`, { signal: over.signal }, held).catch(() => {});
    return () => over.abort();
  }
}

/** The token function has returned a token of another user. */
export const OTHER_IDENTITY = 'other_identity';
