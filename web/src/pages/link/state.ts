/** The state of a link, as `millrace lab link run --live` publishes it: `crates/lab/src/path/live.rs`. */

export const CHANNEL = 'lab/link';

export const DIRECTIONS = ['up', 'down'] as const;
export type Direction = (typeof DIRECTIONS)[number];

/** Counters since the start, and the queue now. */
export interface Side {
  readonly received: number;
  readonly delivered: number;
  readonly delivered_bytes: number;
  /** Packets that were not delivered, by cause. */
  readonly dropped: Readonly<Record<string, number>>;
  readonly duplicated: number;
  readonly corrupted: number;
  readonly on_link: number;
  readonly queue_packets: number;
  readonly queue_bytes: number;
  readonly queue_ms: number;
  readonly queue_packets_max: number;
  readonly queue_ms_max: number;
  readonly delay_sum_ms: number;
  /** Longest delay since the message before. */
  readonly delay_max_ms: number;
}

/** Settings of one direction, with values as `--set` takes them. Absent: the link has no such part. */
export type SideSettings = Readonly<Record<string, unknown>>;

export type Both<T> = { readonly [direction in Direction]: T };

export interface LinkState extends Both<Side> {
  readonly is: 'state';
  /** Random id of this link. */
  readonly run: string;
  readonly started_ms: number;
  /** Time since the start of the link. */
  readonly at_s: number;
  /** Name of the settings, such as `3g, changed`. */
  readonly path: string;
  /** Name of the profile, or empty. */
  readonly profile: string;
  readonly profiles: readonly string[];
  readonly settings: Both<SideSettings> & Readonly<Record<string, unknown>>;
  /** Command that starts a link with these settings. */
  readonly command: string;
  readonly is_out: boolean;
  /** Reason why the link receives no commands. */
  readonly commands_error: string | null;
  /** Result of a command. */
  readonly answer: { readonly id: string; readonly error: string | null } | null;
  /** Present in the last message. `code`: exit code of the program, or null if the link failed. */
  readonly ended?: { readonly code: number | null };
}

/** One second of a direction, for the charts. */
export interface Sample {
  readonly bits_per_s: number;
  /** Mean and longest delay of the delivered packets; null without any. */
  readonly delay_ms: number | null;
  readonly delay_max_ms: number | null;
  readonly queue_ms: number;
  /** Packets per second. */
  readonly lost: number;
  readonly dropped: number;
}

export interface Second extends Both<Sample> {
  readonly at_s: number;
}

export interface View {
  readonly newest: LinkState | undefined;
  /** States of the last minute, oldest first. */
  readonly recent: readonly LinkState[];
  /** The last minute, oldest first. */
  readonly seconds: readonly Second[];
}

export const NOTHING: View = { newest: undefined, recent: [], seconds: [] };

const MINUTE_S = 60;
/** Causes that are drops of the queue. All others are losses of the link. */
const QUEUE_CAUSES = ['queue full', 'queue delay'];

const isState = (data: unknown): data is LinkState => typeof data === 'object' && data !== null && 'is' in data && data.is === 'state';

const sum = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0);
export const droppedByQueue = ({ dropped }: Side): number => sum(QUEUE_CAUSES.map((cause) => dropped[cause] ?? 0));
export const lostOnLink = (side: Side): number => sum(Object.values(side.dropped)) - droppedByQueue(side);

export function applyState(view: View, data: unknown): View {
  if (!isState(data)) return view;
  const { newest } = view;
  // Two links may publish at the same time: the page shows the one that started last.
  if (newest && newest.run !== data.run && newest.started_ms > data.started_ms) return view;
  if (newest?.run !== data.run) return { newest: data, recent: [data], seconds: [] };
  const recent = [...view.recent.filter(({ at_s }) => at_s >= data.at_s - MINUTE_S - 1), data];
  const last = view.seconds.at(-1)?.at_s ?? view.recent[0]!.at_s;
  if (Math.floor(data.at_s) <= Math.floor(last)) return { ...view, newest: data, recent };
  const since = recent.filter(({ at_s }) => at_s >= last);
  const second = { at_s: data.at_s, up: sample(since, 'up'), down: sample(since, 'down') };
  return { newest: data, recent, seconds: [...view.seconds.filter(({ at_s }) => at_s >= data.at_s - MINUTE_S), second] };
}

/** Returns what happened from the first to the last of these states. */
function sample(states: readonly LinkState[], direction: Direction): Sample {
  const [first, last] = [states[0]!, states.at(-1)!];
  const [from, to, lasted_s] = [first[direction], last[direction], last.at_s - first.at_s];
  const per_s = (count: number): number => (lasted_s > 0 ? count / lasted_s : 0);
  const packets = to.delivered - from.delivered;
  const later = states.slice(1).map((state) => state[direction]);
  return {
    bits_per_s: per_s(8 * (to.delivered_bytes - from.delivered_bytes)),
    delay_ms: packets > 0 ? (to.delay_sum_ms - from.delay_sum_ms) / packets : null,
    delay_max_ms: packets > 0 ? Math.max(...later.map((side) => side.delay_max_ms)) : null,
    queue_ms: Math.max(0, ...later.map((side) => side.queue_ms)),
    lost: per_s(lostOnLink(to) - lostOnLink(from)),
    dropped: per_s(droppedByQueue(to) - droppedByQueue(from)),
  };
}

/** Seconds that the figures `now` cover, and those of shares: a share of a few packets says little. */
export const NOW_S = 2;
export const SHARES_S = 10;

export interface Figures {
  readonly now: Sample;
  readonly minute: Sample;
  /** Shares of the packets that were handed to the link; null without any. */
  readonly lost: number | null;
  readonly dropped: number | null;
}

export function figures({ newest, recent }: View, direction: Direction): Figures | undefined {
  if (!newest) return undefined;
  const last = (seconds: number): readonly LinkState[] => recent.filter(({ at_s }) => at_s >= newest.at_s - seconds);
  const shares = last(SHARES_S);
  const [from, to] = [shares[0]![direction], newest[direction]];
  const received = to.received - from.received;
  const share = (of: (side: Side) => number): number | null => (received > 0 ? Math.min(1, (of(to) - of(from)) / received) : null);
  return { now: sample(last(NOW_S), direction), minute: sample(last(MINUTE_S), direction), lost: share(lostOnLink), dropped: share(droppedByQueue) };
}
