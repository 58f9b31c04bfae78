// A browser with tabs, and a server, on a virtual clock. The client is the real one; only the browser and the network
// are simulated. Everything is chosen by a seed, so that a run can be repeated.
import { setMaxListeners } from 'node:events';
import { client } from '../../src/client.js';
import { MillraceError } from '../../src/errors.js';
import type { millrace } from '../../src/index.js';
import { sharedIn, type SharedClient } from '../../src/share/index.js';
import type { Env, PageListener, Port } from '../../src/share/tab.js';
import { openSession, type Dial } from '../../src/transports/session.js';

/** A defect that the tests must find. */
export type Defect = 'steal does nothing' | 'no idempotency keys' | 'subscriptions start from now' | 'messages are lost between tabs';

interface Task {
  readonly at: number;
  readonly owner: SimTab | undefined;
  readonly fn: () => void;
}

interface Lock {
  readonly tab: SimTab;
  readonly held: () => Promise<void>;
  readonly reject: (error: Error) => void;
  readonly resolve: () => void;
}

// Node warns of many listeners, browsers do not.
setMaxListeners(0);
/** More than the longest chain of promises in the client. */
const MICROTASKS = 40;
/** A run has about 20,000 tasks. */
const TASKS_MAX = 500_000;

export class World {
  now = 1_000_000;
  current: SimTab | undefined;
  readonly server: SimServer;
  readonly tabs: SimTab[] = [];
  readonly ports = new Map<string, Set<SimPort>>();
  readonly locks = new Map<string, { holder: Lock | undefined; readonly queue: Lock[] }>();
  readonly #tasks: Task[] = [];
  #done = 0;
  #state: number;

  constructor(
    seed: number,
    readonly defect?: Defect,
  ) {
    this.#state = seed * 2654435761 + 1;
    this.server = new SimServer(this);
  }

  /** Returns a number in [0, 1), by mulberry32. */
  random = (): number => {
    let t = (this.#state += 0x6d2b79f5);
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };

  between = (min: number, max: number): number => min + Math.floor(this.random() * (max - min));

  after(ms: number, fn: () => void, owner = this.current): () => void {
    const task = { at: this.now + Math.max(0, ms), owner, fn };
    this.insert(task);
    return () => {
      const at = this.#tasks.indexOf(task);
      if (at >= 0) this.#tasks.splice(at, 1);
      owner?.backlog.delete(task);
    };
  }

  insert(task: Task): void {
    let low = 0;
    for (let high = this.#tasks.length; low < high; ) {
      const middle = (low + high) >> 1;
      if (this.#tasks[middle]!.at <= task.at) low = middle + 1;
      else high = middle;
    }
    this.#tasks.splice(low, 0, task);
  }

  /** Runs all tasks of the next `ms`. Throws if they never end. */
  async run(ms: number): Promise<void> {
    for (const [end, most] = [this.now + ms, this.#done + TASKS_MAX]; ; this.#done++) {
      if (this.#done > most) throw new Error(`more than ${TASKS_MAX} tasks`);
      const task = this.#tasks[0];
      if (!task || task.at > end) {
        this.now = end;
        return;
      }
      this.#tasks.shift();
      this.now = Math.max(this.now, task.at);
      const { owner } = task;
      if (owner?.dead) continue;
      if (owner?.frozen) {
        owner.backlog.add(task);
        continue;
      }
      this.current = owner;
      task.fn();
      // All microtasks run before the next task.
      for (let n = 0; n < MICROTASKS; n++) await null;
      this.current = undefined;
    }
  }

  /** Runs `act` as a script of the page of `tab`. */
  as<T>(tab: SimTab, act: () => T): T {
    const before = this.current;
    this.current = tab;
    try {
      return act();
    } finally {
      this.current = before;
    }
  }

  open(visible: boolean): SimTab {
    const tab = new SimTab(this, this.tabs.length, visible);
    this.tabs.push(tab);
    return tab;
  }

  grantNext(name: string): void {
    const lock = this.locks.get(name)!;
    const next = lock.queue.shift();
    lock.holder = next;
    if (!next) return;
    this.after(1, () => {
      void next.held().then(() => {
        next.resolve();
        if (lock.holder === next) this.grantNext(name);
      });
    }, next.tab);
  }
}

class SimPort implements Port {
  /** Time of the last delivery from this port to each other port: messages stay in order. */
  readonly last = new Map<SimPort, number>();

  constructor(
    readonly world: World,
    readonly tab: SimTab,
    readonly name: string,
    readonly receive: (data: unknown) => void,
  ) {
    const ports = world.ports.get(name) ?? new Set();
    world.ports.set(name, ports.add(this));
  }

  post(message: object): void {
    const { world } = this;
    const text = JSON.stringify(message);
    for (const port of world.ports.get(this.name) ?? []) {
      if (port === this || port.tab.dead) continue;
      if (world.defect === 'messages are lost between tabs' && world.random() < 0.01 && text.includes('"down"')) continue;
      const at = Math.max(world.now + (world.random() < 0.01 ? world.between(50, 400) : world.between(0, 4)), this.last.get(port) ?? 0);
      this.last.set(port, at);
      world.after(at - world.now, () => world.ports.get(this.name)?.has(port) && port.receive(JSON.parse(text)), port.tab);
    }
  }

  close(): void {
    this.world.ports.get(this.name)?.delete(this);
  }
}

export class SimTab {
  readonly mr: SharedClient;
  page!: PageListener;
  readonly backlog = new Set<Task>();
  frozen = false;
  dead = false;

  constructor(
    readonly world: World,
    readonly index: number,
    public visible: boolean,
  ) {
    const env: Env = {
      id: `t${index}`,
      now: () => world.now,
      random: world.random,
      after: (ms, fn) => world.after(ms, fn, this),
      lock: (name, options, held) => this.#lock(name, options, held),
      port: (name, receive) => new SimPort(world, this, name, receive),
      watchPage: (page) => {
        this.page = page;
        page.setVisible(this.visible);
      },
    };
    const open = ((_: string, options: object, widen: Parameters<typeof client>[3]) =>
      client('http://sim', [{ name: 'websocket', open: (host) => openSession(host, world.server.dial(this)) }], options, widen)) as unknown as typeof millrace;
    this.mr = world.as(this, () => sharedIn(env, 'http://sim', {}, open));
  }

  /** Kills the process of the page. */
  kill(): void {
    const { world } = this;
    this.dead = true;
    world.server.drop(this);
    for (const [name, lock] of world.locks) {
      lock.queue.splice(0, Infinity, ...lock.queue.filter(({ tab }) => tab !== this));
      if (lock.holder?.tab === this) world.grantNext(name);
    }
    for (const ports of world.ports.values()) for (const port of ports) if (port.tab === this) ports.delete(port);
  }

  /** Freezes the page. If `reported`, the page learns of it before, and of its return. */
  freeze(reported: boolean): void {
    if (reported) this.world.as(this, () => this.page.suspend());
    this.frozen = true;
  }

  setVisible(visible: boolean): void {
    this.visible = visible;
    this.world.after(0, () => this.page.setVisible(visible), this);
  }

  thaw(): void {
    this.frozen = false;
    for (const task of this.backlog) this.world.insert(task);
    this.backlog.clear();
    this.world.after(0, () => this.page.resume(), this);
  }

  #lock(name: string, { steal, signal }: { readonly steal?: boolean; readonly signal?: AbortSignal }, held: () => Promise<void>): Promise<unknown> {
    const { world } = this;
    return new Promise<void>((resolve, reject) => {
      const lock = world.locks.get(name) ?? { holder: undefined, queue: [] };
      world.locks.set(name, lock);
      const mine: Lock = { tab: this, held, reject, resolve };
      signal?.addEventListener('abort', () => {
        const at = lock.queue.indexOf(mine);
        if (at < 0) return;
        lock.queue.splice(at, 1);
        reject(new Error('AbortError'));
      });
      if (steal && world.defect !== 'steal does nothing') {
        const robbed = lock.holder;
        if (robbed) world.after(0, () => robbed.reject(new Error('AbortError')), robbed.tab);
        lock.queue.unshift(mine);
        world.grantNext(name);
      } else {
        lock.queue.push(mine);
        if (!lock.holder) world.grantNext(name);
      }
    });
  }
}

interface SimConnection {
  readonly tab: SimTab;
  readonly reading: Set<string>;
  readonly send: (message: object) => void;
  readonly end: () => void;
}

interface Stored {
  readonly position: string;
  readonly time: number;
  readonly data: unknown;
}

/** Speaks the protocol of a session, as far as these tests need it. */
export class SimServer {
  readonly logs = new Map<string, Stored[]>();
  readonly #keys = new Map<string, string>();
  readonly connections = new Set<SimConnection>();

  constructor(readonly world: World) {}

  publish(channel: string, data: unknown, key?: string): string {
    const known = key !== undefined && this.world.defect !== 'no idempotency keys' ? this.#keys.get(`${channel} ${key}`) : undefined;
    if (known) return known;
    const log = this.logs.get(channel) ?? [];
    this.logs.set(channel, log);
    const stored = { position: `e:${log.length + 1}`, time: this.world.now, data };
    log.push(stored);
    if (key !== undefined) this.#keys.set(`${channel} ${key}`, stored.position);
    for (const { reading, send } of this.connections) if ([...reading].some((name) => matches(name, channel))) send({ push: 'message', channel, ...stored });
    return stored.position;
  }

  after(channel: string, since: string): Stored[] {
    const log = this.logs.get(channel) ?? [];
    if (since === 'earliest') return log;
    return since === 'now' ? [] : log.slice(+since.split(':')[1]!);
  }

  position(channel: string): string {
    return `e:${this.logs.get(channel)?.length ?? 0}`;
  }

  /** Cuts all connections of a tab. */
  drop(tab: SimTab): void {
    for (const each of this.connections) if (each.tab === tab) each.end();
  }

  dial(tab: SimTab): Dial {
    const { world } = this;
    return (_, __, receive, end, signal) => {
      let lastIn = 0;
      let lastOut = 0;
      let open = true;
      const connection: SimConnection = {
        tab,
        reading: new Set(),
        send(message) {
          lastOut = Math.max(world.now + world.between(1, 6), lastOut);
          world.after(lastOut - world.now, () => open && !signal.aborted && receive(JSON.stringify(message)), tab);
        },
        end: () => {
          this.connections.delete(connection);
          open = false;
          world.after(1, () => signal.aborted || end(new MillraceError('network', 'cut')), tab);
        },
      };
      world.after(world.between(2, 12), () => {
        if (tab.dead || signal.aborted) return;
        this.connections.add(connection);
        connection.send({ push: 'connected', ping_ms: 1e9, message_bytes_max: 1 << 20 });
      }, undefined);
      return {
        send: (text) => {
          lastIn = Math.max(world.now + world.between(1, 6), lastIn);
          world.after(lastIn - world.now, () => this.connections.has(connection) && this.#handle(connection, JSON.parse(text)), null as never);
        },
        close: () => {
          lastIn = Math.max(world.now + world.between(1, 6), lastIn);
          world.after(lastIn - world.now, () => this.connections.delete(connection), null as never);
        },
      };
    };
  }

  #handle({ reading, send }: SimConnection, { id, ...commands }: { id: number } & Record<string, any>): void {
    const [[command, body] = []] = Object.entries(commands);
    const { channel, since } = body;
    const time = this.world.now;
    if (command === 'ping') send({ id, ok: { time } });
    else if (command === 'publish') send({ id, ok: { position: this.publish(channel, body.data, body.idempotency_key) } });
    else if (command === 'unsubscribe') {
      reading.delete(channel);
      send({ id, ok: {} });
    } else if (command === 'history') {
      const messages = this.after(channel, since).slice(0, body.limit);
      send({ id, ok: { position: messages.at(-1)?.position ?? (since === 'earliest' || since === 'now' ? this.position(channel) : since), messages } });
    } else if (command === 'subscribe') {
      const isPattern = channel.includes('+');
      // The server reads every channel of a session once.
      if (!isPattern && [...reading].some((name) => matches(name, channel))) return send({ id, error: { code: 'already_subscribed', detail: channel, retry: false } });
      reading.add(channel);
      const from = this.world.defect === 'subscriptions start from now' ? undefined : since;
      send({ id, ok: { channel, ...(!isPattern && { position: from ?? this.position(channel), recovered: true }), time } });
      if (isPattern && from) {
        for (const name of this.logs.keys()) {
          if (!matches(channel, name) || reading.has(name)) continue;
          const last = body.positions?.[name];
          for (const message of last ? this.after(name, last) : this.after(name, 'earliest').filter((each) => each.time >= +from)) send({ push: 'message', channel: name, ...message });
        }
      } else if (from) for (const message of this.after(channel, from)) send({ push: 'message', channel, ...message });
    }
  }
}

const matches = (name: string, channel: string): boolean => name === channel || (name.endsWith('/+') && channel.startsWith(name.slice(0, -1)));
