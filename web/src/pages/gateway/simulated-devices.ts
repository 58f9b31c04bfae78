/** Simulated devices in one page, each with its own connection. */
import { millrace, type Client, type MillraceError } from '@millrace/client';
import { refusalOf } from '../../lib/token';
import { read, type Data } from './bundle';
import { after } from './clock';
import type { JoinRequest } from './forwarder';
import { Device, type PeerState } from './peer';
import { nowMs, Order, quantile, readSample, write } from './sample';
import { missingAt, readMissing } from './signals';

export const COUNT_MAX = 20;
/** Maximum number of received messages kept, from which the delays are computed. */
const KEPT_MAX = 5_000;
/** Time after which a receiver that the gateway no longer lists counts as joined. */
const MISSING_MS = 6_000;

export interface Plan {
  /** Name of one device. Several devices get a number appended. */
  readonly name: string;
  readonly count: number;
  /** Receiver of the messages; empty for no receiver. */
  readonly to: string;
  /** Messages for `to`, bundles with a part for each of `parts`, or nothing. */
  readonly sends: 'messages' | 'bundles' | 'nothing';
  readonly parts: readonly string[];
  readonly hz: number;
  readonly characters: number;
  readonly urgent: boolean;
}

export const namesOf = ({ name, count }: Pick<Plan, 'name' | 'count'>): readonly string[] => (count > 1 ? Array.from({ length: count }, (_, i) => `${name}-${i + 1}`) : [name]);

/** A message received by a device of this page. */
export interface Received {
  readonly device: string;
  readonly from: string;
  readonly number: number;
  readonly delayMs: number;
}

export interface DevicesState {
  readonly devices: readonly { readonly name: string; readonly state: PeerState; readonly trouble: string }[];
  readonly sent: number;
  readonly received: number;
  readonly bundles: number;
  /** Number of lost messages reported by bundles. */
  readonly lost: number;
  readonly missing: number;
  readonly duplicates: number;
  readonly p50: number | undefined;
  readonly p99: number | undefined;
  readonly last: string;
  /** The server's message, if it refused this page. */
  readonly refusal: string | undefined;
  /** Receivers of these devices that have not joined the gateway. */
  readonly absent: readonly string[];
}

export class SimulatedDevices {
  /** The last received messages, for tests and debugging. */
  readonly received: Received[] = [];
  /** Messages sent. Each part of a bundle counts. */
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
      const request: JoinRequest = { name, ...(plan.to && { to: plan.to }), ...(plan.urgent && { urgent: '' }) };
      const device = new Device(this.#client, gateway, request, token, (data) => this.#receive(name, data));
      this.#devices.push({ name, device, numbers: new Map() });
      // The devices start evenly spread over a period, because real devices are not synchronized.
      if (plan.sends !== 'nothing') this.#schedule(i, performance.now() + (i * periodMs) / plan.count, periodMs);
    });
  }

  /**
   * Schedules the next message by the clock, not by the last timer, so that a late message does not delay the following
   * ones.
   */
  #schedule(i: number, dueMs: number, periodMs: number): void {
    const fire = (): void => {
      this.#send(i);
      this.#schedule(i, Math.max(dueMs + periodMs, performance.now() - periodMs), periodMs);
    };
    this.#stops.set(i, after(Math.max(dueMs - performance.now(), 0), fire));
  }

  #send(i: number): void {
    const { name, device, numbers } = this.#devices[i]!;
    const { sends, parts, characters } = this.plan;
    const receivers = sends === 'bundles' ? parts : [''];
    const next = (to: string): number => (numbers.get(to) ?? 0) + 1;
    const sample = (to: string): string => write({ number: next(to), atMs: nowMs(), from: name }, characters);
    const text = sends === 'bundles' ? JSON.stringify(parts.map((peer) => ({ peer, data: sample(peer) }))) : sample('');
    if (!device.send(text)) return;
    for (const to of receivers) numbers.set(to, next(to));
    this.sent += receivers.length;
  }

  #receive(device: string, data: string | ArrayBuffer): void {
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
    this.#order.observe(`${from}\n${device}`, number);
    this.received.push({ device, from, number, delayMs: nowMs() - atMs });
    if (this.received.length > KEPT_MAX) this.received.splice(0, KEPT_MAX / 10);
  }

  snapshot(): DevicesState {
    const delays = this.received.map(({ delayMs }) => delayMs).sort((a, b) => a - b);
    const { missing, duplicates } = this.#order;
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
      duplicates,
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
