// One connection for all tabs of a browser.
//
//   import { shared } from '@millrace/client/share';
//   const mr = shared('https://example.com');
//   mr.subscribe('cars/1/telemetry').on((event) => draw(event.data));
//
// The tabs of one origin that use the same server as the same user elect a leader. Only the leader has a connection to
// the server. When the leader ends, is frozen or is busy, another tab leads, and all subscriptions and publications
// continue without loss or duplicates. See docs/how-to/share-a-connection.md.
import { client, type Core } from '../client.js';
import { MillraceError, toError } from '../errors.js';
import { history, pages, presence, rpc } from '../extras.js';
import { millrace } from '../index.js';
import { call, orAborted } from '../listen.js';
import { baseOf } from '../request.js';
import type { Channels, Client, ConnectOptions, State, Stats, TokenReason, TransportName } from '../types.js';
import { wildcards } from '../wildcards.js';
import { groupOf, identityOf } from './identity.js';
import { VERSION } from './messages.js';
import { OTHER_IDENTITY, Tab, type Env, type PageListener, type Role } from './tab.js';

export { MillraceError, type ErrorCode } from '../errors.js';
export type { Role } from './tab.js';

export interface ShareOptions extends ConnectOptions {
  /**
   * Name of the user. Only tabs with the same name and server share a connection. Default: what the token says, without
   * its times and id; for this, every tab requests a token when it is first used.
   */
  readonly identity?: string;
}

export interface ShareStats {
  /** `alone`: this tab does not share, for `reason`. `starting`: there is no leader yet. */
  readonly role: Role;
  readonly reason?: string | undefined;
  /** Number of tabs that share the connection; 0 while it is unknown. */
  readonly tabs: number;
  /** Number of leaders so far, as far as this tab knows. */
  readonly epoch: number;
}

/** `transport`, `rtt` and `lost` are those of the shared connection; the other numbers are those of this tab. */
export interface SharedStats extends Stats {
  readonly share: ShareStats;
}

export interface SharedClient<M = Channels> extends Omit<Client<M>, 'stats'> {
  stats(): SharedStats;
}

/**
 * Creates a client that shares one connection with the other tabs of this origin, or with the workers, that use the
 * same `url` as the same user. It has the interface of `millrace(url, options)`. Without Web Locks or BroadcastChannel,
 * for example on a page without TLS, it has a connection of its own.
 */
export function shared<M = Channels>(url: string | URL, options: ShareOptions = {}): SharedClient<M> {
  const missing = !globalThis.navigator?.locks ? 'Web Locks' : !globalThis.BroadcastChannel ? 'BroadcastChannel' : !globalThis.crypto?.subtle ? 'Web Cryptography' : undefined;
  if (missing) {
    const own = millrace<M>(url, options);
    const { stats } = own;
    return Object.assign(own, { stats: () => ({ ...stats(), share: { role: 'alone', reason: `this runtime has no ${missing}`, tabs: 1, epoch: 0 } as const }) });
  }
  return sharedIn(browserEnv(), url, options);
}

/** Creates a shared client in `env`. `open` creates the connection of a leader. */
export function sharedIn<M = Channels>(env: Env, url: string | URL, options: ShareOptions = {}, open: typeof millrace = millrace): SharedClient<M> {
  const base = baseOf(url);
  const { signal, log, retry, token } = options;
  const tokenFor = async (context: { reason: TokenReason; signal: AbortSignal }): Promise<string | undefined> => (typeof token === 'function' ? token(context) : token);
  let identity = options.identity;
  /** Returns a token of the user of this group. */
  const checkedToken = async (context: { reason: TokenReason; signal: AbortSignal }): Promise<string> => {
    const given = (await tokenFor(context))!;
    if (options.identity === undefined && identityOf(given) !== identity) {
      throw new MillraceError('auth', 'the token function returned a token of another user or with other permissions; create a new client', { reason: OTHER_IDENTITY });
    }
    return given;
  };
  const over = new AbortController();
  const tab = new Tab(env, {
    async group() {
      identity ??= identityOf(await tokenFor({ reason: 'connect', signal: over.signal }));
      return groupOf(VERSION, base, identity);
    },
    connect: (widen) => open(url, { ...options, ...(typeof token === 'function' && { token: checkedToken }), signal: over.signal }, widen) as unknown as Core,
    changed: () => report(),
    wake: () => core.wake(),
  });
  const core = client<M>(url, [tab.transport], { ...(signal && { signal }), ...(log && { log }), ...(retry && { retry }) }, wildcards);
  const listeners = new Set<(state: State) => void>();
  let transport: TransportName = 'websocket';

  /** Returns the state of the shared connection, or that of the link to the leader while it is not open. */
  function stateNow(): State {
    const { state } = core;
    if (state.name === 'open' && tab.upstream) return tab.upstream.state.name === 'idle' ? { name: 'connecting', attempt: 0, transport } : tab.upstream.state;
    return 'transport' in state ? { ...state, transport } : state;
  }

  function report(): void {
    transport = tab.upstream?.stats.transport ?? transport;
    const state = stateNow();
    listeners.forEach((fn) => call(fn, state));
    if (core.state.name !== 'closed') return;
    over.abort();
    tab.close();
  }

  function onState(fn: (state: State) => void): () => void {
    listeners.add(fn);
    return () => void listeners.delete(fn);
  }

  async function ready({ signal, timeout }: { signal?: AbortSignal; timeout?: number } = {}): Promise<void> {
    let off!: () => void;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const open = new Promise<void>((resolve, reject) => {
      const check = (state: State): void => {
        if (state.name === 'closed') reject(state.cause ?? toError('closed', 'aborted'));
        else if (state.name === 'open') resolve();
      };
      off = onState(check);
      if (timeout) timer = setTimeout(() => reject(new MillraceError('timeout', `not open after ${timeout} ms`)), timeout);
      core.ready().catch(reject);
      check(stateNow());
    });
    return orAborted(open, signal).finally(() => {
      clearTimeout(timer);
      off();
    });
  }

  /** Sends a command to the leader that the server does not know. The body needs a channel name. */
  const askLeader = (command: string, channel: string): Promise<unknown> => core.ask(command as 'ping', { channel: channel as 'ping' });

  core.onState(report);
  env.watchPage(tab, over.signal);
  const { ask, subscribe, publish, stats, close } = core;
  const made = {
    get state() {
      return stateNow();
    },
    onState,
    ready,
    subscribe,
    publish,
    ask,
    history: history.bind(null, core),
    pages: pages.bind(null, core),
    presence: presence.bind(null, core),
    rpc: rpc.bind(null, core),
    stats: (): SharedStats => ({
      ...stats(),
      transport: tab.upstream?.stats.transport,
      rtt: tab.upstream?.stats.rtt ?? 0,
      lost: tab.upstream?.stats.lost ?? 0,
      share: { role: tab.role, tabs: tab.upstream?.tabs ?? 0, epoch: tab.epoch, ...(tab.alone !== undefined && { reason: tab.alone }) },
    }),
    async use(name: TransportName | 'auto') {
      await askLeader('use', name);
    },
    wake() {
      core.wake();
      if (core.state.name === 'open') askLeader('wake', 'wake').catch(() => {});
    },
    close,
    [Symbol.asyncDispose]: close,
  };
  return made as unknown as SharedClient<M>;
}

function browserEnv(): Env {
  const id = Array.from(crypto.getRandomValues(new Uint32Array(3)), (part) => part.toString(36)).join('');
  return {
    id,
    now: () => performance.now(),
    random: Math.random,
    after(ms, fn) {
      if (ms > 0) {
        const timer = setTimeout(fn, ms);
        return () => clearTimeout(timer);
      }
      // Browsers delay the timers of hidden pages, but not their messages.
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => {
        port1.close();
        fn();
      };
      port2.postMessage(0);
      return () => port1.close();
    },
    lock: (name, options, held) => navigator.locks.request(name, options, held),
    port(name, receive) {
      const channel = new BroadcastChannel(name);
      channel.onmessage = ({ data }) => receive(data);
      return { post: (message) => channel.postMessage(message), close: () => channel.close() };
    },
    watchPage,
  };
}

function watchPage(tab: PageListener, signal: AbortSignal): void {
  // A worker has no page.
  const { document } = globalThis as Partial<Window & typeof globalThis>;
  if (!document) return;
  const isVisible = (): void => tab.setVisible(!document.hidden);
  isVisible();
  document.addEventListener('visibilitychange', isVisible, { signal });
  for (const target of [document, globalThis]) {
    for (const type of ['freeze', 'pagehide']) target.addEventListener(type, () => tab.suspend(), { signal });
    for (const type of ['resume', 'pageshow']) target.addEventListener(type, () => tab.resume(), { signal });
  }
}
