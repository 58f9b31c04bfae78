// Snapshots of a client for user interfaces: the part that the bindings for React, Svelte and Vue share.
//
// A store has an immutable snapshot, and reports when a newer one replaces it: at most once per animation frame, for
// all stores together. A store opens its subscription when it gets its first listener. Stores of one client with equal
// arguments share one subscription, which closes one turn of the event loop after the last listener has left. A
// component that is removed and added at once, as in React's StrictMode, therefore keeps its subscription. Without a
// listener, as on a server that renders pages, a store never connects.
import { MillraceError, toError } from './errors.js';
import { call } from './listen.js';
import { roster as openRoster, type Member } from './roster.js';
import { state as openState, type KeyedState, type StateEntry, type StateOptions } from './state.js';
import type { Channels, Client, Event, From, Gap, Published, PublishOptions, Register, State, SubscribeOptions, Subscription, TransportName } from './types.js';

/** The channels of the application: those of `Register`, or any. */
export type Registered = Register extends { readonly channels: infer M } ? M : Channels;

/** The part of a client that stores use. A client of `@millrace/client/core` has it, too. */
export type StoreClient = Pick<Client<any>, 'state' | 'onState' | 'subscribe' | 'publish' | 'stats'>;

export interface Store<S> {
  /** The snapshot before the first listener, which does not depend on the client: what a server renders. */
  readonly initial: S;
  /** Returns the current snapshot; the same object until the snapshot changes. */
  readonly get: () => S;
  /** Calls `changed` when `get` returns a new snapshot. Returns a function that removes the listener. */
  readonly subscribe: (changed: () => void) => () => void;
}

/**
 * When a component is updated. `frame` (default): once per animation frame, and every 250 ms while the page is hidden.
 * A number: the minimum interval between two updates, in milliseconds. `each`: after every change.
 */
export type Updates = 'frame' | 'each' | number;

export interface LiveOptions<T = unknown> extends Pick<SubscribeOptions<T>, 'policy' | 'schema'> {
  /** Start of the subscription, as for `subscribe`. Default `now`. */
  readonly from?: Exclude<From, 'state'>;
  readonly updates?: Updates;
}

export interface MessagesOptions<T = unknown> extends LiveOptions<T> {
  /** Maximum number of messages in the list; the oldest ones are dropped. Default 100. */
  readonly max?: number;
}

export interface KeyedOptions<T = unknown> extends Omit<StateOptions<T>, 'signal'> {
  readonly updates?: Updates;
}

/** The state of a subscription, in every snapshot of a channel. */
export interface Status {
  /** True when the subscription has started; for a state or a roster, when all its entries have arrived. */
  readonly ready: boolean;
  /** Number of gaps so far. A gap means that messages were lost, for example because history has expired. */
  readonly gaps: number;
  readonly lastGap: Gap | undefined;
  /** Why the subscription has ended. It is opened again when the component is created again. */
  readonly error: MillraceError | undefined;
}

/** The newest message of a channel. */
export interface Live<T = unknown> extends Status {
  readonly data: T | undefined;
  readonly event: Event<T> | undefined;
}

/** The newest messages of a channel, oldest first. */
export interface Messages<T = unknown> extends Status {
  readonly messages: readonly Event<T>[];
  /** Number of messages received so far, including those that the list has dropped. */
  readonly received: number;
}

/** A keyed state. `set` and `delete` settle when the server has stored the change. */
export interface Keyed<T = unknown> extends Status, Pick<KeyedState<T>, 'set' | 'delete'> {
  readonly entries: ReadonlyMap<string, StateEntry<T>>;
}

/** The members of a channel. */
export interface Present<Info = unknown> extends Status {
  readonly members: ReadonlyMap<string, Member<Info>>;
  /** Number of connections of all members. */
  readonly connections: number;
}

export interface Connection {
  readonly state: State;
  /** The transport of the open connection. */
  readonly transport: TransportName | undefined;
  /** True while a connection that was open before is being opened again. */
  readonly reconnecting: boolean;
  /** Cause of the last failed attempt, or of the end of the client. */
  readonly error: MillraceError | undefined;
}

/** The publications of one component. */
export interface Publishing {
  /** Number of publications that the server has not yet stored. */
  readonly pending: number;
  /** The error of the last publication, until the next one succeeds. */
  readonly error: MillraceError | undefined;
}

export interface Publisher<T = unknown> extends Store<Publishing> {
  /** Settles when the server has stored the publication, or with `undefined` if it has failed. Then `error` is set. */
  readonly publish: (data: T, options?: PublishOptions) => Promise<Published | undefined>;
}

/** Time after which an animation frame is no longer awaited, ms: a hidden page has none. */
const FRAME_MAX_MS = 250;

const due = new Set<() => void>();

/** Calls `flush` in the next animation frame, in one turn of the event loop with all others. */
function inNextFrame(flush: () => void): void {
  due.add(flush);
  if (due.size > 1) return;
  const run = (): void => {
    clearTimeout(timer);
    if (frame !== undefined) globalThis.cancelAnimationFrame?.(frame);
    const all = [...due];
    due.clear();
    all.forEach((each) => call(each, undefined));
  };
  const timer = setTimeout(run, FRAME_MAX_MS);
  const frame = globalThis.requestAnimationFrame?.(run);
}

/** An open subscription, as its stores see it. */
interface Opened<S> {
  /** Returns a new snapshot. */
  read(): S;
  close(): void;
  readonly state?: KeyedState<any>;
}

interface Source<S> {
  snapshot: S;
  readonly listeners: Set<() => void>;
  /** Absent while the subscription is being opened, and if it could not be opened. */
  opened?: Opened<S>;
}

const sourcesOf = new WeakMap<object, Map<string, Source<any>>>();
const schemas = new WeakMap<object, number>();
let schemaCount = 0;

/** Returns a text that is equal for equal arguments. Schemas are compared by identity, because they are functions. */
export function keyOf(...parts: readonly unknown[]): string {
  return JSON.stringify(parts, (name, value: unknown) => {
    if (name !== 'schema' || !value) return typeof value === 'bigint' ? `${value}n` : value;
    if (!schemas.has(value)) schemas.set(value, ++schemaCount);
    return schemas.get(value);
  });
}

/**
 * Returns a store whose subscription `open` opens. `before` is the snapshot before the first listener, if it depends on
 * the client.
 */
function store<S extends { readonly error: MillraceError | undefined }>(
  mr: StoreClient,
  key: string,
  initial: S,
  { updates = 'frame' }: { readonly updates?: Updates },
  open: (changed: () => void) => Opened<S>,
  before = initial,
): Store<S> {
  const sources = sourcesOf.get(mr) ?? new Map<string, Source<S>>();
  sourcesOf.set(mr, sources);

  function start(): Source<S> {
    const listeners = new Set<() => void>();
    const source: Source<S> = { snapshot: initial, listeners };
    let isDue = false;
    const flush = (): void => {
      isDue = false;
      if (!source.opened || sources.get(key) !== source) return;
      source.snapshot = source.opened.read();
      listeners.forEach((changed) => call(changed, undefined));
    };
    const changed = (): void => {
      if (!source.opened || isDue) return;
      if (updates === 'each') return flush();
      isDue = true;
      if (updates === 'frame') inNextFrame(flush);
      else setTimeout(flush, updates);
    };
    sources.set(key, source);
    try {
      source.opened = open(changed);
      source.snapshot = source.opened.read();
    } catch (thrown) {
      source.snapshot = { ...initial, error: toError(thrown) };
    }
    return source;
  }

  return {
    initial,
    get: () => sources.get(key)?.snapshot ?? before,
    subscribe(changed) {
      const source = sources.get(key) ?? start();
      const listener = (): void => changed();
      source.listeners.add(listener);
      return () => {
        source.listeners.delete(listener);
        setTimeout(() => {
          if (source.listeners.size || sources.get(key) !== source) return;
          sources.delete(key);
          source.opened?.close();
        });
      };
    },
  };
}

/** A store without a channel, for a component that has none yet. */
const without = <S>(initial: S): Store<S> => ({ initial, get: () => initial, subscribe: () => () => {} });

const CLOSED: Status = { ready: false, gaps: 0, lastGap: undefined, error: undefined };
const NO_MESSAGE: Live<never> = { ...CLOSED, data: undefined, event: undefined };
const NO_MESSAGES: Messages<never> = { ...CLOSED, messages: [], received: 0 };
const NO_MEMBERS: Present<never> = { ...CLOSED, members: new Map(), connections: 0 };
const IDLE: Connection = { state: { name: 'idle' }, transport: undefined, reconnecting: false, error: undefined };
const NOT_PUBLISHING: Publishing = { pending: 0, error: undefined };

/** Calls `changed` at every gap. The core calls no listener then, but sets `lastGap`. */
function onGap(subscription: Subscription<any>, changed: () => void): void {
  let lastGap = subscription.lastGap;
  const set = (gap: Gap | undefined): void => {
    lastGap = gap;
    changed();
  };
  Object.defineProperty(subscription, 'lastGap', { get: () => lastGap, set });
}

/** Subscribes to `channel` and calls `take` for every message. Returns the status and the end. */
function follow<T>(mr: StoreClient, channel: string, { from, policy, schema }: LiveOptions<T>, take: (event: Event<T>) => void, changed: () => void) {
  let ready = false;
  let error: MillraceError | undefined;
  const subscription: Subscription<T> = mr.subscribe(channel, { ...(from && { from }), ...(policy && { policy }), ...(schema && { schema }) });
  onGap(subscription, changed);
  const onEvent = (event: Event<T>): void => {
    take(event);
    changed();
  };
  const onEnd = (cause?: MillraceError): void => {
    ready = false;
    error = cause;
    changed();
  };
  const onReady = (): void => {
    ready = true;
    changed();
  };
  subscription.on(onEvent, onEnd);
  subscription.ready.then(onReady, () => {});
  return {
    status: (): Status => ({ ready, gaps: subscription.gaps, lastGap: subscription.lastGap, error }),
    close: () => void subscription.close(),
  };
}

/** The newest message of `channel`. Without a channel, the store stays empty and does not connect. */
export function live<T>(mr: StoreClient, channel: string | undefined, options: LiveOptions<T> = {}): Store<Live<T>> {
  if (channel === undefined) return without(NO_MESSAGE);
  return store<Live<T>>(mr, keyOf('live', channel, options), NO_MESSAGE, options, (changed) => {
    let event: Event<T> | undefined;
    const { status, close } = follow<T>(mr, channel, options, (newest) => (event = newest), changed);
    return { read: () => ({ ...status(), data: event?.data, event }), close };
  });
}

/** The newest messages of `channel`. */
export function messages<T>(mr: StoreClient, channel: string | undefined, options: MessagesOptions<T> = {}): Store<Messages<T>> {
  if (channel === undefined) return without(NO_MESSAGES);
  const { max = 100 } = options;
  return store<Messages<T>>(mr, keyOf('messages', channel, options), NO_MESSAGES, options, (changed) => {
    let list: Event<T>[] = [];
    let received = 0;
    const take = (event: Event<T>): void => {
      received++;
      list.push(event);
      // Dropping many at once makes the cost of a message constant.
      if (list.length > 2 * max + 100) list = newest();
    };
    const newest = (): Event<T>[] => list.slice(Math.max(0, list.length - max));
    const { status, close } = follow<T>(mr, channel, options, take, changed);
    return { read: () => ({ ...status(), messages: newest(), received }), close };
  });
}

/**
 * Reads a keyed state or a roster. `make` gets a client that reports every event of its subscriptions, because the
 * state itself reports only changes, not that it is complete again after lost changes.
 */
function followState<S extends Pick<KeyedState<any>, 'on' | 'close' | 'complete'>>(mr: StoreClient, make: (client: StoreClient) => S, changed: () => void) {
  let subscription: Subscription<any> | undefined;
  let gaps = 0;
  let lastGap: Gap | undefined;
  let error: MillraceError | undefined;
  const client = Object.assign(Object.create(mr) as StoreClient, {
    subscribe(channel: string, options: SubscribeOptions<any>) {
      // The first subscription ends only after lost changes or with an error.
      if (subscription) [gaps, lastGap] = [gaps + 1, subscription.lastGap];
      const { on, close } = (subscription = mr.subscribe(channel, options));
      changed();
      const reporting: typeof on = (fn, end) => on((event) => (fn(event), changed()), end);
      return { on: reporting, close };
    },
  });
  const state = make(client as StoreClient);
  const onEnd = (cause?: MillraceError): void => {
    error = cause;
    changed();
  };
  state.on(() => {}, onEnd);
  return { state, status: (): Status => ({ ready: state.complete, gaps, lastGap, error }), close: () => void state.close() };
}

const stateOptions = <T>({ policy, schema }: KeyedOptions<T>): StateOptions<T> => ({ ...(policy && { policy }), ...(schema && { schema }) });

/** The entries of the keyed state `channel`. */
export function keyed<T>(mr: StoreClient, channel: string | undefined, options: KeyedOptions<T> = {}): Store<Keyed<T>> {
  const key = keyOf('keyed', channel, options);
  const open = (): KeyedState<T> => {
    const state = sourcesOf.get(mr)?.get(key)?.opened?.state;
    if (!state) throw new MillraceError('invalid', `the state ${channel ?? ''} is not open: change it from an effect or an event handler of a component that is on the page`);
    return state;
  };
  const writer: Pick<KeyedState<T>, 'set' | 'delete'> = {
    set: async (...args) => open().set(...args),
    delete: async (...args) => open().delete(...args),
  };
  const initial: Keyed<T> = { ...CLOSED, ...writer, entries: new Map() };
  if (channel === undefined) return without(initial);
  return store<Keyed<T>>(mr, key, initial, options, (changed) => {
    const { state, status, close } = followState(mr, (client) => openState<T>(client, channel, stateOptions(options)), changed);
    return { read: () => ({ ...status(), ...writer, entries: new Map([...state].map((entry) => [entry.key, entry])) }), close, state };
  });
}

/** The members of `channel`. */
export function roster<Info>(mr: StoreClient, channel: string | undefined, options: KeyedOptions<Member<Info>> = {}): Store<Present<Info>> {
  if (channel === undefined) return without(NO_MEMBERS);
  return store<Present<Info>>(mr, keyOf('roster', channel, options), NO_MEMBERS, options, (changed) => {
    const { state, status, close } = followState(mr, (client) => openRoster<Info>(client, channel, stateOptions(options)), changed);
    return { read: () => ({ ...status(), members: new Map([...state].map(({ key, value }) => [key, value])), connections: state.connections }), close };
  });
}

/** The connection of a client. This store only observes: it does not connect. */
export function connection(mr: StoreClient, options: { readonly updates?: Updates } = {}): Store<Connection> {
  const read = (): Connection => {
    const { state } = mr;
    const { transport, cause } = state as { transport?: TransportName; cause?: MillraceError };
    const isOpen = state.name === 'open';
    return { state, transport: isOpen ? transport : undefined, reconnecting: state.name === 'connecting' && mr.stats().transport !== undefined, error: cause };
  };
  return store<Connection>(mr, keyOf('connection', options), IDLE, options, (changed) => ({ read, close: mr.onState(changed) }), read());
}

/** Publishes to `channel`, and counts what is pending. Each publisher has its own count and error. */
export function publisher<T>(mr: StoreClient, channel: string | undefined): Publisher<T> {
  const listeners = new Set<() => void>();
  let snapshot = NOT_PUBLISHING;
  let next = snapshot;
  const change = (change: Partial<Publishing>): void => {
    next = { ...next, ...change };
    inNextFrame(flush);
  };
  const flush = (): void => {
    snapshot = next;
    listeners.forEach((changed) => call(changed, undefined));
  };
  return {
    initial: NOT_PUBLISHING,
    get: () => snapshot,
    subscribe(changed) {
      const listener = (): void => changed();
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    async publish(data, options) {
      change({ pending: next.pending + 1 });
      try {
        if (channel === undefined) throw new MillraceError('invalid', 'there is no channel to publish to: the channel of this component is undefined');
        const published = await mr.publish(channel, data, options);
        change({ pending: next.pending - 1, error: undefined });
        return published;
      } catch (thrown) {
        change({ pending: next.pending - 1, error: toError(thrown) });
        return undefined;
      }
    },
  };
}
