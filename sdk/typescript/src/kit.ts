// The kit Earl: two color LEDs and a light sensor, on the channels NAME/led, NAME/state and NAME/light.
//
//   import { openKit } from '@millrace/client/kit';
//   const kit = openKit(millrace('https://example.com'), 'earl/1');
//   kit.onLight(({ light }) => show(light));
//   await kit.setColor('a', '#ff8000'); // settles when the kit has confirmed it
//
// Source: docs/how-to/light-a-kit.md.
import { MillraceError, toError } from './errors.js';
import { call, sleep } from './listen.js';
import type { Client, Subscription } from './types.js';

export { MillraceError, type ErrorCode } from './errors.js';

/** Levels of red, green and blue, each 0 to 15. */
export type Levels = readonly [number, number, number];
/** `#rrggbb`, or levels. */
export type Color = string | Levels;
export type Lamp = 'a' | 'b';

/** Times of a blink, ms, each 0 to 16,320. The LED driver takes the nearest of its 16 times. */
export interface BlinkTimes {
  readonly fade_in_ms?: number;
  readonly on_ms: number;
  readonly fade_out_ms?: number;
  readonly off_ms: number;
}

/** Which LEDs blink, and their times. */
export interface Blink extends BlinkTimes {
  readonly a: boolean;
  readonly b: boolean;
}

/** State of a kit. */
export interface KitState {
  /** The newest command that the kit has accepted, of any writer. */
  readonly commanded: { readonly id: string | null; readonly a: Levels; readonly b: Levels; readonly blink: Blink | null };
  /** Levels and times that the LED driver could give. Null until the LED module has confirmed the command. */
  readonly given: { readonly a: Levels; readonly b: Levels; readonly blink: Blink | null; readonly note: string | null } | null;
  /** Light of the lamps now, `#rrggbb`. Null unless the kit is simulated, because no other kit can measure it. */
  readonly lit: { readonly a: string; readonly b: string } | null;
  readonly error: string | null;
  /** Id of the command that `error` is about. Null for errors of the hardware. */
  readonly error_id: string | null;
  /** Commands that a newer one replaced before they were sent. */
  readonly superseded: number;
  /** Restarts of the LED module. */
  readonly restarts: number;
}

/** A reading of the light sensor. */
export interface Light {
  /** 0 to 1. */
  readonly light: number;
  /** 0 to 1023. */
  readonly raw: number;
  readonly sensor: 'working' | 'dark' | 'saturated';
  /** Milliseconds since 1970: when this client received the reading. A reading from history has the server's time. */
  readonly at: number;
}

export interface CommandOptions {
  /** Time for the answer of the kit, ms. Default 5000. */
  readonly deadline?: number;
}

export interface Kit extends AsyncDisposable {
  readonly name: string;
  /** The newest state and reading. Undefined until the kit has reported. */
  readonly state: KitState | undefined;
  readonly light: Light | undefined;
  /** Settles when the channels of the kit can no longer be read, with the reason; undefined after `close`. */
  readonly ended: Promise<MillraceError | undefined>;
  /**
   * Sets the color of an LED; its blinking stays as it is.
   *
   * Settles with the state that shows the command, or a newer one of this object. Commands in quick succession are
   * joined. Rejects with a MillraceError: `rejected` with the error of the kit, or with reason `superseded` if another
   * writer replaced the command; `timeout` after the deadline; or the error of publishing.
   */
  setColor(lamp: Lamp, color: Color, options?: CommandOptions): Promise<KitState>;
  /** Lets LEDs blink, for example `blink({ a: true }, { on_ms: 500, off_ms: 500 })`. Without times, no LED blinks. */
  blink(lamps: { readonly a?: boolean; readonly b?: boolean }, times?: BlinkTimes, options?: CommandOptions): Promise<KitState>;
  /** Calls `fn` with the newest state, if any, and with each later state. Returns a function that removes `fn`. */
  onState(fn: (state: KitState) => void): () => void;
  /** As `onState`, for readings of the light sensor. */
  onLight(fn: (light: Light) => void): () => void;
  /** Ends the subscriptions. The client stays open. */
  close(): Promise<void>;
}

/** Least time between two commands, ms: a color picker gives dozens per second, and the kit can show ten. */
const COMMAND_EVERY = 50;
const DEADLINE = 5_000;

interface Command {
  a?: Color;
  b?: Color;
  blink?: Blink | null;
}

/** A command that is not answered yet. */
interface Asked {
  readonly number: number;
  readonly command: Command;
  readonly answer: Promise<KitState>;
  readonly resolve: (state: KitState) => void;
  readonly reject: (cause: MillraceError) => void;
  timer?: ReturnType<typeof setTimeout>;
  /** Id in the state when the command was published. */
  before?: string | null | undefined;
}

/** Opens a kit. The client must be allowed to subscribe to its state and light, and to publish to NAME/led. */
export function openKit(client: Pick<Client, 'subscribe' | 'publish'>, name = 'earl/1'): Kit {
  return new RemoteKit(client, name);
}

class RemoteKit implements Kit {
  state: KitState | undefined;
  light: Light | undefined;
  readonly ended: Promise<MillraceError | undefined>;
  readonly #client: Pick<Client, 'subscribe' | 'publish'>;
  readonly #subscriptions: Subscription[];
  readonly #onState = new Set<(state: KitState) => void>();
  readonly #onLight = new Set<(light: Light) => void>();
  /** Distinguishes this object from other writers. */
  readonly #writer = Math.random().toString(36).slice(2, 12);
  #number = 0;
  /** The command that is not published yet. Further commands are joined with it. */
  #next: Asked | undefined;
  /** Published commands without an answer, oldest first. */
  readonly #asked: Asked[] = [];
  #isSending = false;
  #reported: KitState | undefined;
  #lamps: KitState['lit'] = null;

  constructor(
    client: Pick<Client, 'subscribe' | 'publish'>,
    readonly name: string,
  ) {
    this.#client = client;
    const subscribe = (what: string, from: 'latest' | 'now'): Subscription => client.subscribe(`${name}/${what}`, { from, policy: 'latest' });
    const [state, light, lamps] = [subscribe('state', 'latest'), subscribe('light', 'latest'), subscribe('lamps', 'now')];
    this.#subscriptions = [state, light, lamps];
    this.ended = new Promise((resolve) => {
      state.on(({ data }) => this.#handleState((this.#reported = data as KitState)), resolve);
      light.on(({ data, publishedAt, receivedAt, replayed }) => {
        this.light = { ...(data as Light), at: replayed ? publishedAt : receivedAt };
        for (const fn of this.#onLight) call(fn, this.light);
      }, resolve);
      // The lamps of a module on a serial connection, if it is simulated. A token need not allow them.
      lamps.on(({ data }) => {
        this.#lamps = data as KitState['lit'];
        if (this.#reported?.lit === null) this.#handleState(this.#reported);
      }, () => {});
    });
    void this.ended.then((cause) => this.#rejectAll(cause ?? new MillraceError('aborted', 'the kit was closed')));
  }

  setColor(lamp: Lamp, color: Color, options?: CommandOptions): Promise<KitState> {
    return this.#command({ [lamp]: color }, options);
  }

  blink({ a = false, b = false }: { readonly a?: boolean; readonly b?: boolean }, times?: BlinkTimes, options?: CommandOptions): Promise<KitState> {
    return this.#command({ blink: times && (a || b) ? { ...times, a, b } : null }, options);
  }

  onState(fn: (state: KitState) => void): () => void {
    this.#onState.add(fn);
    if (this.state) call(fn, this.state);
    return () => void this.#onState.delete(fn);
  }

  onLight(fn: (light: Light) => void): () => void {
    this.#onLight.add(fn);
    if (this.light) call(fn, this.light);
    return () => void this.#onLight.delete(fn);
  }

  async close(): Promise<void> {
    await Promise.all(this.#subscriptions.map((one) => one.close()));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #command(command: Command, { deadline = DEADLINE }: CommandOptions = {}): Promise<KitState> {
    const asked = (this.#next ??= this.#create(deadline));
    Object.assign(asked.command, command);
    if (!this.#isSending) void this.#send();
    return asked.answer;
  }

  #create(deadline: number): Asked {
    // A command without `blink` ends blinking, so the present one is repeated.
    const { blink } = this.#asked.at(-1)?.command ?? this.state?.commanded ?? {};
    let [resolve, reject]: [(state: KitState) => void, (cause: MillraceError) => void] = [() => {}, () => {}];
    const answer = new Promise<KitState>((...both) => ([resolve, reject] = both));
    const asked: Asked = { number: ++this.#number, command: blink ? { blink } : {}, answer, resolve, reject };
    asked.timer = setTimeout(() => this.#reject(asked, this.#late(asked, deadline)), deadline);
    return asked;
  }

  /** Publishes the next command, and those that are given meanwhile. */
  async #send(): Promise<void> {
    this.#isSending = true;
    for (let asked; (asked = this.#next); await sleep(COMMAND_EVERY)) {
      this.#next = undefined;
      this.#asked.push(asked);
      asked.before = this.state?.commanded.id;
      const id = `${this.#writer}-${asked.number}`;
      await this.#client.publish(`${this.name}/led`, { ...asked.command, id }).catch((thrown: unknown) => this.#reject(asked, toError(thrown)));
    }
    this.#isSending = false;
  }

  #handleState(reported: KitState): void {
    // Without the module, its lamps are unknown.
    const state = { ...reported, lit: reported.lit ?? (reported.error ? null : this.#lamps) };
    this.state = state;
    const { commanded, given, error, error_id } = state;
    const shown = this.#numberOf(commanded.id);
    const refused = this.#numberOf(error_id);
    for (const asked of [...this.#asked]) {
      const isShown = asked.number <= shown;
      if (asked.number === refused || (isShown && error && error_id === null)) this.#reject(asked, new MillraceError('rejected', error!));
      else if (isShown && given) {
        this.#forget(asked);
        asked.resolve(state);
      }
    }
    for (const fn of this.#onState) call(fn, state);
  }

  /** Returns the number of a command of this object; 0 for a command of another writer. */
  #numberOf(id: string | null): number {
    const [writer, number] = id?.split('-') ?? [];
    return writer === this.#writer ? Number(number) : 0;
  }

  #late({ before }: Asked, deadline: number): MillraceError {
    const id = this.state?.commanded.id;
    if (id && id !== before && !this.#numberOf(id)) return new MillraceError('rejected', `the command ${id} of another writer replaced this one`, { reason: 'superseded' });
    return new MillraceError('timeout', `the kit ${this.name} did not answer within ${deadline} ms; is it running?`);
  }

  #reject(asked: Asked, cause: MillraceError): void {
    this.#forget(asked);
    asked.reject(cause);
  }

  #rejectAll(cause: MillraceError): void {
    for (const asked of [...this.#asked, ...(this.#next ? [this.#next] : [])]) this.#reject(asked, cause);
  }

  #forget(asked: Asked): void {
    clearTimeout(asked.timer);
    const at = this.#asked.indexOf(asked);
    if (at >= 0) this.#asked.splice(at, 1);
    if (this.#next === asked) this.#next = undefined;
  }
}
