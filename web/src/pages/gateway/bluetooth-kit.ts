/** Forwards between a kit on Bluetooth and its channels: commands to the kit, its states and readings to the server. */
import type { Client, MillraceError, Subscription } from '@millrace/client';
import { reasonOf } from '../../lib/format';
import { after } from './clock';
import { CHARACTERISTICS, SERVICE, VALUE_BYTES_MAX, type BluetoothDevice, type Characteristic } from './gatt';

/** Maximum number of commands that wait for the kit. The oldest are dropped: the newest command counts. */
const COMMANDS_MAX = 64;
/** Time limit of one operation on the connection. */
const OPERATION_MS = 10_000;
/** Interval at which values are read while no notification arrives, and the silence that counts as none. */
const READ_MS = 250;
const SILENCE_MS = 2_000;
/** A value that has not changed is published again after this time, as a sign of life. */
const REPEAT_MS = 1_000;
/** Pause before the next attempt to connect. */
const CONNECT_MS = 1_000;

type Reported = 'state' | 'light';

export interface KitView {
  readonly name: string;
  readonly device: string;
  readonly state: 'connecting' | 'connected' | 'closed';
  readonly trouble: string;
  /** Commands written to the kit, and commands that were too long or dropped. */
  readonly written: number;
  readonly dropped: number;
  /** Values published, and those that were no JSON. */
  readonly published: number;
  readonly malformed: number;
  /** Whether the kit notifies, or is read at an interval. */
  readonly notifies: boolean;
}

export class BluetoothKit {
  readonly #client: Client;
  readonly #device: BluetoothDevice;
  readonly #commands: Uint8Array[] = [];
  #notifiedAt = -Infinity;
  readonly #last: Record<Reported, { readonly text: string; readonly atMs: number } | undefined> = { state: undefined, light: undefined };
  readonly #next: Partial<Record<Reported, unknown>> = {};
  readonly #publishing = new Set<Reported>();
  #characteristics: Readonly<Record<keyof typeof CHARACTERISTICS, Characteristic>> | undefined;
  /** The value that is being read: a read causes the same event as a notification. */
  #reading: Reported | undefined;
  /** The last operation. Web Bluetooth refuses a second one at the same time. */
  #busy: Promise<unknown> = Promise.resolve();
  #subscription: Subscription | undefined;
  #isClosed = false;
  #isWriting = false;
  /** The next attempt to connect is scheduled. */
  #isWaiting = false;
  #trouble = '';
  #written = 0;
  #dropped = 0;
  #published = 0;
  #malformed = 0;

  constructor(
    client: Client,
    readonly name: string,
    device: BluetoothDevice,
  ) {
    this.#client = client;
    this.#device = device;
    device.addEventListener('gattserverdisconnected', () => this.#lose('the Bluetooth connection was lost; the gateway connects again'));
    this.#subscription = client.subscribe(`${name}/led`, { from: 'earliest' });
    this.#subscription.on(({ data }) => this.#command(data), (cause) => this.#fail(cause));
    void this.#connect();
    this.#read();
  }

  view(): KitView {
    const state = this.#isClosed ? 'closed' : this.#characteristics ? 'connected' : 'connecting';
    return { name: this.name, device: this.#device.name ?? '', state, trouble: this.#trouble, written: this.#written, dropped: this.#dropped, published: this.#published, malformed: this.#malformed, notifies: this.#notifies() };
  }

  /** A kit reports its light at least once per second. */
  #notifies(): boolean {
    return performance.now() - this.#notifiedAt < SILENCE_MS;
  }

  close(): void {
    this.#isClosed = true;
    void this.#subscription?.close();
    this.#device.gatt?.disconnect();
  }

  #fail(cause: MillraceError | undefined): void {
    if (cause) this.#trouble = `cannot read ${this.name}/led: ${cause.message}`;
  }

  async #connect(): Promise<void> {
    try {
      const server = await inTime(this.#device.gatt!.connect());
      const service = await inTime(server.getPrimaryService(SERVICE));
      const get = (what: keyof typeof CHARACTERISTICS): Promise<Characteristic> => inTime(service.getCharacteristic(CHARACTERISTICS[what]));
      const characteristics = { led: await get('led'), state: await get('state'), light: await get('light') };
      for (const what of ['state', 'light'] as const) await this.#notify(what, characteristics[what]);
      if (this.#isClosed) return this.#device.gatt!.disconnect();
      this.#characteristics = characteristics;
      this.#trouble = '';
      // A kit that notifies does so on changes only.
      void this.#readValue('state');
      void this.#write();
    } catch (thrown) {
      this.#lose(`cannot connect to the kit: ${reasonOf(thrown)}`);
    }
  }

  /** Asks for notifications. A kit without these is read at an interval. */
  async #notify(what: Reported, characteristic: Characteristic): Promise<void> {
    if (!characteristic.properties.notify) return;
    characteristic.addEventListener('characteristicvaluechanged', () => {
      if (!characteristic.value || !this.#characteristics || this.#reading === what) return;
      this.#notifiedAt = performance.now();
      this.#report(what, characteristic.value);
    });
    await inTime(characteristic.startNotifications()).catch(() => {});
  }

  /** Reads both values while the kit does not notify, again and again. */
  #read(): void {
    after(READ_MS, () => {
      if (this.#isClosed) return;
      const silent = this.#notifies() ? [] : (['state', 'light'] as const);
      void Promise.all(silent.map((what) => this.#readValue(what))).then(() => this.#read());
    });
  }

  async #readValue(what: Reported): Promise<void> {
    const characteristics = this.#characteristics;
    if (!characteristics) return;
    const value = await this.#operate(async () => {
      this.#reading = what;
      try {
        return await inTime(characteristics[what].readValue());
      } finally {
        this.#reading = undefined;
      }
    });
    if (value && this.#characteristics === characteristics) this.#report(what, value);
  }

  /** Runs one operation after the other. Undefined if it failed; the connection is then closed. */
  #operate<T>(operation: () => Promise<T>): Promise<T | undefined> {
    const run = async (): Promise<T | undefined> => {
      try {
        return await operation();
      } catch (thrown) {
        this.#lose(`the kit does not answer: ${reasonOf(thrown)}`);
        return undefined;
      }
    };
    const done = this.#busy.then(run);
    this.#busy = done;
    return done;
  }

  /** Closes a connection that failed, publishes the error, and connects again. */
  #lose(why: string): void {
    if (this.#isClosed || this.#isWaiting) return;
    this.#characteristics = undefined;
    this.#isWaiting = true;
    this.#trouble = why;
    this.#device.gatt?.disconnect();
    const known = this.#last.state && (JSON.parse(this.#last.state.text) as object);
    if (known) this.#publish('state', { ...known, given: null, lit: null, error: why, error_id: null });
    this.#last.state = this.#last.light = undefined;
    after(CONNECT_MS, () => {
      this.#isWaiting = false;
      if (!this.#isClosed) void this.#connect();
    });
  }

  #command(data: unknown): void {
    const bytes = new TextEncoder().encode(JSON.stringify(data));
    if (bytes.length > VALUE_BYTES_MAX) return void this.#dropped++;
    this.#commands.push(bytes);
    if (this.#commands.length > COMMANDS_MAX) {
      this.#commands.shift();
      this.#dropped++;
    }
    void this.#write();
  }

  async #write(): Promise<void> {
    if (this.#isWriting) return;
    this.#isWriting = true;
    while (this.#commands.length > 0 && this.#characteristics) {
      const { led } = this.#characteristics;
      const command = this.#commands[0]!;
      const isWritten = await this.#operate(async () => (await inTime(led.writeValueWithResponse(command)), true));
      // A command whose write failed is written again after the next connection.
      if (!isWritten) break;
      this.#written++;
      if (this.#commands[0] === command) this.#commands.shift();
    }
    this.#isWriting = false;
  }

  #report(what: Reported, value: DataView): void {
    const text = new TextDecoder().decode(value);
    const last = this.#last[what];
    if (!text || (last?.text === text && performance.now() - last.atMs < REPEAT_MS)) return;
    let data: unknown;
    try {
      data = JSON.parse(text);
    } catch {
      return void this.#malformed++;
    }
    if (typeof data !== 'object' || data === null) return void this.#malformed++;
    this.#last[what] = { text, atMs: performance.now() };
    this.#publish(what, data);
  }

  /** Publishes the newest value of each kind. Older ones are dropped while one is on its way. */
  #publish(what: Reported, data: unknown): void {
    this.#next[what] = data;
    if (this.#publishing.has(what)) return;
    this.#publishing.add(what);
    void (async () => {
      try {
        while (what in this.#next) {
          const next = this.#next[what];
          delete this.#next[what];
          await this.#client.publish(`${this.name}/${what}`, next);
          this.#published++;
        }
      } catch (thrown) {
        this.#trouble = `cannot publish to ${this.name}/${what}: ${reasonOf(thrown)}`;
      } finally {
        this.#publishing.delete(what);
      }
    })();
  }
}

/** Settles as `operation`, or rejects after the time limit: a lost device leaves operations without an answer. */
function inTime<T>(operation: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const cancel = after(OPERATION_MS, () => reject(new Error(`no answer within ${OPERATION_MS / 1000} s`)));
    operation.then(resolve, reject).finally(cancel);
  });
}
