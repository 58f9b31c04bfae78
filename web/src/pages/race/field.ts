/** All lanes of a race: opens their readers, starts races, and ends them. */
import type { Tick } from '../../lib/ticks';
import { LANES, type ServerLane, type ServerRace } from './api';
import { Figures } from './figures';
import { read, type Reader } from './reader';
import type { Result } from './share';
import { viewOf, type View } from './view';

const TICKS = 300;
/** A race waits this long for the first connection of every lane. */
const OPEN_MS = 3_000;
/** A race ends this long after the first lane has finished. */
const BEHIND_MAX_MS = 20_000;
/**
 * A publisher that starts again numbers its ticks from 1: a tick with a smaller number that was published this long
 * after the newest one. A tick that only arrives late, over a throttled lane, was published before.
 */
const RESTART_MS = 1_000;
/** Clocks that differ by less count as equal, because the request takes time, too. */
const SKEW_MIN_MS = 100;

interface Lane {
  server: ServerLane;
  readonly reader: Reader | undefined;
  figures: Figures;
}

export class Field {
  readonly ticks = TICKS;
  result: Result | undefined;
  isRunning = false;
  readonly #lanes: Lane[] = [];
  #openedAt = 0;
  #newestSeq = 0;
  /** When the newest tick was published, by the publisher's clock, and when it arrived. */
  #newestTime = 0;
  #newestAt = 0;
  #started = false;
  #symbol: string | undefined;
  /** Server's clock minus the clock of this machine, ms. */
  #skew = 0;

  constructor(readonly token: string | undefined) {}

  /** Takes over the state of the server. The first call opens the readers. */
  count({ lanes, time_ms }: ServerRace): void {
    const skew = time_ms - Date.now();
    this.#skew = Math.abs(skew) < SKEW_MIN_MS ? 0 : skew;
    if (this.#lanes.length === 0) this.#open(lanes);
    for (const server of lanes) this.update(server);
    if (this.isRunning) this.advance(Date.now());
  }

  update(server: ServerLane): void {
    const lane = this.#lanes.find((lane) => lane.server.transport === server.transport);
    if (!lane) return;
    lane.server = server;
    const { requests = 0, reconnects = 0 } = lane.reader ?? {};
    lane.figures.count({ bytes: server.bytes_up + server.bytes_down, requests, reconnects }, server);
  }

  /** Begins a race with the next tick. */
  start(): void {
    [this.isRunning, this.#started, this.result] = [true, true, undefined];
    for (const { figures } of this.#lanes) figures.start(this.#newestSeq, this.#newestSeq + TICKS);
  }

  /** Starts the first race when all lanes are open, and ends a race. */
  advance(now: number): void {
    const usable = this.#lanes.filter(({ reader }) => reader);
    if (!this.#started && this.#newestSeq > 0 && (usable.every(({ figures }) => figures.newest) || now - this.#openedAt > OPEN_MS)) this.start();
    if (!this.isRunning) return;
    const ends = usable.flatMap(({ figures }) => figures.finishedAt ?? []);
    const first = Math.min(...ends);
    const allCounted = usable.every(({ figures }) => figures.final);
    // Figures are final with the first count after the end of the lane.
    if (ends.length === 0 || (!allCounted && now + this.#skew - first < BEHIND_MAX_MS)) return;
    this.isRunning = false;
    const places = usable.map(({ server, figures }) => ({ lane: server.transport, behindMs: figures.finishedAt === undefined ? undefined : figures.finishedAt - first, ...(figures.final ?? figures.row()) }));
    this.result = { at: Math.round(first - this.#skew), ticks: TICKS, places };
  }

  get progress(): number {
    return Math.max(0, ...this.#lanes.map(({ figures }) => figures.progress));
  }

  /** Time since the newest tick of any lane, ms. */
  silentMs(now: number): number {
    return this.#openedAt === 0 ? 0 : now - Math.max(this.#newestAt, this.#openedAt);
  }

  views(now: number): View[] {
    const ends = this.#lanes.flatMap(({ figures }) => figures.finishedAt ?? []).sort((a, b) => a - b);
    return this.#lanes.map(({ server, figures, reader }) => {
      const place = figures.finishedAt === undefined ? '' : `${ends.indexOf(figures.finishedAt) + 1}.`;
      return viewOf(server, figures, reader, now + this.#skew, now - this.#openedAt, place);
    });
  }

  close(): void {
    for (const { reader } of this.#lanes) reader?.close();
  }

  #open(lanes: readonly ServerLane[]): void {
    this.#openedAt = Date.now();
    for (const server of lanes) {
      // A newer server may have a transport that this page does not know.
      if (!LANES.some(({ name }) => name === server.transport)) continue;
      const isUsable = server.transport !== 'data-channel' || server.datagram_ports.length > 0;
      const lane: Lane = { server, figures: new Figures(), reader: isUsable ? read(server, this.token, (tick, now) => this.#handle(lane, tick, now)) : undefined };
      this.#lanes.push(lane);
    }
  }

  #handle(lane: Lane, tick: Tick, now: number): void {
    // A publisher can state any time.
    const time = Math.min(tick.time, now + this.#skew);
    if (tick.seq < this.#newestSeq && time > this.#newestTime + RESTART_MS) this.#forget();
    if (tick.seq > this.#newestSeq && time >= this.#newestTime) [this.#newestSeq, this.#newestTime, this.#newestAt] = [tick.seq, time, now];
    lane.figures.handle(tick, now + this.#skew, (this.#symbol ??= tick.symbol));
  }

  /** Begins again, because another publisher numbers the ticks. */
  #forget(): void {
    for (const lane of this.#lanes) lane.figures = new Figures();
    [this.#newestSeq, this.#started, this.isRunning, this.result] = [0, false, false, undefined];
  }
}
