// The messages between the tabs of one origin. They travel over two kinds of BroadcastChannel: the channel of the
// group, which all its tabs read, and one channel per tab, which only that tab and the leader read.
import { MillraceError, type ErrorCode } from '../errors.js';
import type { State, Stats } from '../types.js';

/** Version of the messages. It is a part of the group's name, so that tabs with another version form another group. */
export const VERSION = 1;
/** Maximum length of a text between tabs, UTF-16 units. No server with a usable limit sends a longer publication. */
export const TEXT_MAX = 1 << 27;
const ID_MAX = 64;

interface Envelope<Kind extends string> {
  readonly v: typeof VERSION;
  readonly kind: Kind;
  /** Id of the sending tab. */
  readonly from: string;
}

/** A tab looks for the leader, or tests whether it still answers. */
export type Who = Envelope<'who'> & { readonly visible: boolean };
/** The leader answers. */
export type Lead = Envelope<'lead'> & { readonly epoch: number; readonly hidden: boolean };
/** A hidden leader hands over to the visible tab `to`. */
export type Take = Envelope<'take'> & { readonly to: string };
/** A tab no longer leads. */
export type Resign = Envelope<'resign'> & { readonly epoch: number };
/** A tab opens a link to the leader `to`. */
export type Open = Envelope<'open'> & { readonly to: string; readonly link: string };

type OnLink<Kind extends string> = Envelope<Kind> & { readonly link: string };
/** A command of the tab, or a reply or push of the leader. Source: docs/reference/protocol.md, "Sessions". */
export type Text = OnLink<'up' | 'down'> & { readonly text: string };
/** The tab has received `count` texts on this link. */
export type Ack = OnLink<'ack'> & { readonly count: number };
/** The wire subscription of a channel was started again, because the leader has connected again. */
export type Started = OnLink<'started'> & { readonly channel: string; readonly time: number };
/** State of the leader's connection. */
export type Upstream = OnLink<'upstream'> & { readonly state: State; readonly stats: Stats; readonly tabs: number };
/** The end of a link; without an error, the tab has ended it. */
export type End = OnLink<'end'> & { readonly error?: WireError };
/** The leader serves too many tabs: this tab must open a connection of its own. */
export type Full = OnLink<'full'>;

export type Message = Who | Lead | Take | Resign | Open | Text | Ack | Started | Upstream | End | Full;
type Unsigned<M> = M extends Message ? Omit<M, 'v' | 'from'> : never;
/** A message without its sender. */
export type Draft = Unsigned<Message>;

type Test = (value: unknown) => boolean;
const id: Test = (value) => typeof value === 'string' && value.length <= ID_MAX;
const text: Test = (value) => typeof value === 'string' && value.length <= TEXT_MAX;
const flag: Test = (value) => typeof value === 'boolean';
const count: Test = (value) => Number.isSafeInteger(value) && (value as number) >= 0;
const object: Test = (value) => typeof value === 'object' && value !== null;

const FIELDS: Readonly<Record<Message['kind'], Readonly<Record<string, Test>>>> = {
  who: { visible: flag },
  lead: { epoch: count, hidden: flag },
  take: { to: id },
  resign: { epoch: count },
  open: { to: id, link: id },
  up: { link: id, text },
  down: { link: id, text },
  ack: { link: id, count },
  started: { link: id, channel: text, time: count },
  upstream: { link: id, state: (value) => object(value) && typeof (value as State).name === 'string', stats: object, tabs: count },
  end: { link: id, error: (value) => value === undefined || (object(value) && typeof (value as WireError).message === 'string') },
  full: { link: id },
};

/** Returns a message, or undefined for data of another version or with malformed fields. */
export function decode(data: unknown): Message | undefined {
  const message = Object(data) as Record<string, unknown>;
  if (message['v'] !== VERSION || !id(message['from']) || !Object.hasOwn(FIELDS, message['kind'] as string)) return undefined;
  const fields = FIELDS[message['kind'] as Message['kind']];
  return Object.keys(fields).every((name) => fields[name]!(message[name])) ? (message as unknown as Message) : undefined;
}

/** A MillraceError as tabs exchange it. */
export interface WireError {
  readonly code: ErrorCode;
  readonly message: string;
  readonly retryable: boolean;
  readonly retryAfter?: number | undefined;
  readonly reason?: string | undefined;
}

export const encodeError = ({ code, message, retryable, retryAfter, reason }: MillraceError): WireError => ({ code, message, retryable, retryAfter, reason });

export const decodeError = ({ code, message, ...details }: WireError): MillraceError => new MillraceError(code, message, details);

/** Returns a state without the objects that cannot be cloned. `decodeState` is the inverse. */
export function encodeState(state: State): State {
  const { cause } = state as { cause?: MillraceError };
  return cause ? ({ ...state, cause: encodeError(cause) } as unknown as State) : state;
}

export function decodeState(state: State): State {
  const { cause } = state as { cause?: MillraceError };
  return cause ? ({ ...state, cause: decodeError(cause) } as State) : state;
}
