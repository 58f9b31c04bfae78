/**
 * The connection of this page: one client, two subscriptions. `fleet` is a keyed state with the newest record of every
 * car, and `cars/{id}/telemetry` has every record of the selected car. Both follow a change of the transport.
 */
import { millrace, type Client, type Event, type MillraceError, type State, type Subscription } from '@millrace/client';
import { state } from '@millrace/client/state';
import type { PageTransport } from '../../lib/transports';
import { Driving } from './driving';
import { Fleet, type Arrival } from './fleet';
import { History } from './history';
import { carIdOf, isTelemetry, type CarId, type Telemetry } from './telemetry';

type Channels = { fleet: Telemetry; 'cars/{id}/telemetry': Telemetry };

/** Cost of one transport so far. */
export interface TransportCost {
  messages: number;
  bytes: number;
  reconnects: number;
  gaps: number;
}
export interface Received {
  readonly seq: number;
  readonly offset: bigint;
  readonly transport: string;
}

/** Maximum number of recorded deliveries, which tests read. */
const RECEIVED_MAX = 5_000;
const HISTORY_SECONDS = 120;

/** Returns whether data has stopped. The first attempt and a change of the transport are loading, not a failure. */
export function isLost(state: State): boolean {
  if (state.name === 'connecting') return state.retryAt !== undefined || state.attempt > 0;
  return state.name === 'closed' || (state.name === 'paused' && state.reason === 'offline');
}

export class Live {
  readonly client: Client<Channels>;
  readonly fleet = new Fleet();
  readonly history = new History();
  readonly driving: Driving;
  /** Every numbered record of the selected car, in order of arrival. */
  readonly received: Received[] = [];
  readonly costs = new Map<PageTransport, TransportCost>();
  selected: CarId | undefined;
  /** Why the subscription to the fleet has ended. */
  ended: MillraceError | undefined;

  #car: Subscription<Telemetry> | undefined;
  #before = { messages: 0, bytesIn: 0, reconnects: 0, gaps: 0 };
  #transport: PageTransport | undefined;

  constructor(origin: string, via: PageTransport | undefined, token: string | undefined) {
    this.client = millrace<Channels>(origin, { ...(via && { transports: [via] }), ...(token && { token }) });
    state<unknown>(this.client, 'fleet', { policy: 'latest' }).on(
      ({ key, entry }) => (entry ? this.#accept(entry.value, entry) : this.fleet.remove(carIdOf(key) ?? key)),
      (cause) => (this.ended = cause),
    );
    this.driving = new Driving(this.client as unknown as Client);
  }

  get transport(): PageTransport | undefined {
    return this.client.stats().transport ?? this.#transport;
  }

  select(id: CarId | undefined): void {
    if (id === this.selected) return;
    this.selected = id;
    this.driving.select(id);
    this.history.clear();
    this.received.length = 0;
    void this.#car?.close();
    this.#car = undefined;
    if (id === undefined) return;
    const car = this.client.subscribe(`cars/${id}/telemetry`, { from: { seconds: HISTORY_SECONDS } });
    this.#car = car;
    car.on((event) => {
      if (this.#car === car) this.#record(event);
    });
  }

  async use(transport: PageTransport): Promise<void> {
    this.account();
    await this.client.use(transport);
    this.account();
  }

  /** Adds the traffic since the last call to the cost of the transport that carried it. */
  account(): void {
    const now = this.client.stats();
    const transport = now.transport ?? this.#transport;
    if (!transport) return;
    const cost = this.costs.get(transport) ?? { messages: 0, bytes: 0, reconnects: 0, gaps: 0 };
    cost.messages += now.messages - this.#before.messages;
    cost.bytes += now.bytesIn - this.#before.bytesIn;
    cost.reconnects += now.reconnects - this.#before.reconnects;
    cost.gaps += now.gaps - this.#before.gaps;
    this.costs.set(transport, cost);
    this.#before = { messages: now.messages, bytesIn: now.bytesIn, reconnects: now.reconnects, gaps: now.gaps };
    this.#transport = transport;
  }

  onState(fn: (state: State) => void): () => void {
    return this.client.onState((state) => {
      this.account();
      fn(state);
    });
  }

  #accept(record: unknown, arrival: Arrival): void {
    if (isTelemetry(record)) this.fleet.accept(record, arrival, performance.now());
  }

  #record(event: Event<Telemetry>): void {
    const record = event.data;
    if (!isTelemetry(record)) return;
    this.#accept(record, event);
    this.history.push(this.fleet.pageTime(event), record.speed, record.gpsLatitude, record.gpsLongitude);
    if (record.seq !== undefined) {
      this.received.push({ seq: record.seq, offset: event.offset, transport: this.transport ?? 'none' });
      if (this.received.length > RECEIVED_MAX) this.received.splice(0, this.received.length - RECEIVED_MAX);
    }
  }
}
