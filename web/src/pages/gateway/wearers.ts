/** Simulated devices in one page, each with a connection of its own: what a phone has around it. */
import { millrace, type Client, type MillraceError } from '@millrace/client';
import { refusalOf } from '../../lib/token';
import { read, type Data } from './bundle';
import { after } from './clock';
import type { Ticket } from './forwarder';
import { Device, type PeerState } from './peer';
import { nowMs, Order, quantile, readSample, write } from './sample';
import { missingAt, readMissing } from './signals';

export const COUNT_MAX = 20;
/** Received messages that are kept, and delays that are looked at. */
const KEPT_MAX = 5_000;
/** A gateway that has not named a missing receiver for so long has found it. */
const MISSING_MS = 6_000;

export interface Plan {
  /** Of one device; of several, with a number behind it. */
  readonly name: string;
  readonly count: number;
  /** Whom what they send is for; empty: nobody. */
  readonly to: string;
  /** Messages for `to`, bundles with a part for each of `parts`, or nothing. */
  readonly sends: 'messages' | 'bundles' | 'nothing';
  readonly parts: readonly string[];
  readonly hz: number;
  readonly characters: number;
  readonly urgent: boolean;
}

export const namesOf = ({ name, count }: Pick<Plan, 'name' | 'count'>): readonly string[] => (count > 1 ? Array.from({ length: count }, (_, i) => `${name}-${i + 1}`) : [name]);

/** A message that came to one of the devices here. */
export interface Received {
  readonly device: string;
  readonly from: string;
  readonly number: number;
  readonly delayMs: number;
}

export interface WearersView {
  readonly devices: readonly { readonly name: string; readonly state: PeerState; readonly trouble: string }[];
  readonly sent: number;
  readonly received: number;
  readonly bundles: number;
  /** Said by bundles. */
  readonly lost: number;
  readonly missing: number;
  readonly again: number;
  readonly p50: number | undefined;
  readonly p99: number | undefined;
  readonly last: string;
  /** What the server said, if it refused this page. */
  readonly refusal: string | undefined;
  /** Receivers of these devices that have not joined the gateway. */
  readonly absent: readonly string[];
}

export class Wearers {
  /** The last messages that have come, for tests and the curious. */
  readonly received: Received[] = [];
  /** Messages sent, a bundle's parts each as one. */
  sent = 0;
  bundles = 0;
  #count = 0;
  #lost = 0;
  #last = '';
  readonly #order = new Order();
  readonly #client: Client;
  readonly #devices: { readonly name: string; readonly device: Device; readonly numbers: Map<string, number> }[] = [];
  readonly #stops = new Map<number, () => void>();
  #missing: { readonly names: ReadonlyMap<string, number>; readonly atMs: number } | undefined;
  #ended: MillraceError | undefined;

  constructor(
    gateway: string,
    token: string | undefined,
    readonly plan: Plan,
  ) {
    this.#client = millrace(location.origin, token ? { token } : {});
    this.#client.subscribe(missingAt(gateway)).on(
      ({ data }) => (this.#missing = { names: readMissing(data), atMs: performance.now() }),
      (cause) => (this.#ended = cause),
    );
    const names = namesOf(plan);
    const periodMs = 1000 / plan.hz;
    names.forEach((name, i) => {
      const ticket: Ticket = { name, ...(plan.to && { to: plan.to }), ...(plan.urgent && { urgent: '' }) };
      const device = new Device(this.#client, gateway, ticket, token, (data) => this.#hear(name, data));
      this.#devices.push({ name, device, numbers: new Map() });
      // Evenly spread over a period, as nobody begins with anybody else.
      if (plan.sends !== 'nothing') this.#beat(i, performance.now() + (i * periodMs) / plan.count, periodMs);
    });
  }

  /** By the clock, not by the last timer: what is late is sent late, and the next one when it is due. */
  #beat(i: number, dueMs: number, periodMs: number): void {
    const ring = (): void => {
      this.#send(i);
      this.#beat(i, Math.max(dueMs + periodMs, performance.now() - periodMs), periodMs);
    };
    this.#stops.set(i, after(Math.max(dueMs - performance.now(), 0), ring));
  }

  #send(i: number): void {
    const { name, device, numbers } = this.#devices[i]!;
    const { sends, parts, characters } = this.plan;
    const receivers = sends === 'bundles' ? parts : [''];
    const next = (to: string): number => (numbers.get(to) ?? 0) + 1;
    const say = (to: string): string => write({ number: next(to), atMs: nowMs(), from: name }, characters);
    const text = sends === 'bundles' ? JSON.stringify(parts.map((peer) => ({ peer, data: say(peer) }))) : say('');
    if (!device.send(text)) return;
    for (const to of receivers) numbers.set(to, next(to));
    this.sent += receivers.length;
  }

  #hear(device: string, data: string | ArrayBuffer): void {
    if (typeof data !== 'string') return void this.#count++;
    const bundle = data.startsWith('[') ? read(data) : undefined;
    if (bundle) {
      this.bundles++;
      this.#lost += bundle.lost;
    }
    this.#last = data;
    for (const part of bundle?.parts ?? [{ data }]) this.#message(device, part.data);
  }

  #message(device: string, data: Data): void {
    this.#count++;
    const sample = typeof data === 'string' ? readSample(data) : undefined;
    if (!sample) return;
    const { from, number, atMs } = sample;
    this.#order.see(`${from}\n${device}`, number);
    this.received.push({ device, from, number, delayMs: nowMs() - atMs });
    if (this.received.length > KEPT_MAX) this.received.splice(0, KEPT_MAX / 10);
  }

  look(): WearersView {
    const delays = this.received.map(({ delayMs }) => delayMs).sort((a, b) => a - b);
    const { missing, again } = this.#order;
    const devices = this.#devices.map(({ name, device: { state, trouble } }) => ({ name, state, trouble }));
    const { to, sends, parts } = this.plan;
    const known = this.#missing && performance.now() - this.#missing.atMs < MISSING_MS ? this.#missing.names : undefined;
    const receivers = sends === 'bundles' ? parts : sends === 'messages' ? [to] : [];
    return {
      devices,
      sent: this.sent,
      received: this.#count,
      bundles: this.bundles,
      lost: this.#lost,
      missing,
      again,
      p50: quantile(delays, 0.5),
      p99: quantile(delays, 0.99),
      last: this.#last,
      refusal: refusalOf(this.#client.state, this.#ended),
      absent: receivers.filter((name) => known?.has(name)),
    };
  }

  close(): void {
    for (const stop of this.#stops.values()) stop();
    for (const { device } of this.#devices) device.close();
    void this.#client.close();
  }
}
