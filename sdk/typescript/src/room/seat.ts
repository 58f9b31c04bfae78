// The seat of this page in a room, kept over a reload of the page. Source: docs/reference/rooms.md, "Reload".
//
// The ticket is stored only when the page ends. So a copy of a tab that is in a call has no ticket, and joins as
// another participant. A ticket is used once: the server refuses a second copy of it.

/** The seat that a page hands over to the page after it. */
export interface Seat {
  readonly participant: string;
  readonly ticket: string;
  /** The data sent and received by this page, so that data arrives once in spite of the reload. */
  readonly flow: FlowSnapshot;
}

/** Numbers of the last messages, and the position in the channel of data. */
export interface FlowSnapshot {
  readonly at: string;
  /** Own sequence number, and those of the last messages from others. Absent in a tree. */
  readonly seq?: number;
  readonly delivered?: Readonly<Record<string, number>>;
}

/** Time for which a page uses a stored seat, ms. Servers hold it for a shorter time by default. */
const VALID = 60_000;

const keyOf = (room: string): string => `millrace-seat ${room}`;
const storage = (): Storage | undefined => {
  try {
    return globalThis.sessionStorage;
  } catch {
    // The page may not use storage.
    return undefined;
  }
};

/** Returns a stored seat that is valid and not too old: a tab that is opened again later begins a new call. */
function read(room: string): Seat | undefined {
  try {
    const { until = 0, participant, ticket, flow } = JSON.parse(storage()?.getItem(keyOf(room)) ?? '{}') as Partial<Seat & { until: number }>;
    return until > Date.now() && typeof participant === 'string' && typeof ticket === 'string' && typeof flow?.at === 'string' ? { participant, ticket, flow } : undefined;
  } catch {
    return undefined;
  }
}

/** Whether this tab has a seat in a room, from the page before a reload. */
export const hasSeat = (room: string): boolean => !!read(room);

/** Takes the seat out of the storage, so that no other page uses it. */
export function takeSeat(room: string): Seat | undefined {
  const seat = read(room);
  storage()?.removeItem(keyOf(room));
  return seat;
}

export function keepSeat(room: string, seat: Seat): void {
  try {
    storage()?.setItem(keyOf(room), JSON.stringify({ ...seat, until: Date.now() + VALID }));
  } catch {
    // The storage is full: the next page joins as another participant.
  }
}
