// The members of a channel: a live list, and pages of it.
//
//   import { millrace } from '@millrace/client';
//   import { roster } from '@millrace/client/roster';
//   const present = roster<{ name: string }>(millrace('https://example.com'), 'chat/kitchen');
//   await present.ready;
//   present.on(({ key, entry }) => show(key, entry?.value.info?.name));
//
// The server keeps the list as a keyed state beside the channel. It needs the permission `presence`. Source:
// docs/reference/protocol.md, "Presence".
import type { Ask } from './link.js';
import { signalOf } from './listen.js';
import { state, type KeyedState, type StateOptions } from './state.js';
import type { Client } from './types.js';

export { MillraceError, type ErrorCode } from './errors.js';

/** A member of a channel. The key of its entry is its id: the subject of its token, or the id of its connection. */
export interface Member<Info = unknown> {
  /** Number of connections of this member that read the channel, on all nodes. */
  readonly connections: number;
  /** Milliseconds since 1970 by the server's clock: when the member joined. */
  readonly since_ms: number;
  /** Information that the token or the application's back end has given. */
  readonly info?: Info;
}

/** A live list of the members of a channel. Only the server changes it. */
export interface Roster<Info = unknown> extends Omit<KeyedState<Member<Info>>, 'set' | 'delete'> {
  /** Number of connections of all members. `size` is the number of members. */
  readonly connections: number;
}

/** Reads the members of `channel`, then every join and leave. */
export function roster<Info = unknown>(mr: Pick<Client<any>, 'subscribe'>, channel: string, options: StateOptions<Member<Info>> = {}): Roster<Info> {
  const members = state<Member<Info>>(mr, `${channel}/:members`, options);
  return Object.defineProperty(members, 'connections', {
    get: () => [...members].reduce((sum, { value }) => sum + value.connections, 0),
  }) as unknown as Roster<Info>;
}

/** One page of members. */
export interface MembersPage<Info = unknown> {
  /** Number of open subscriptions of the channel. */
  readonly count: number;
  readonly members: readonly (Member<Info> & { readonly id: string })[];
}

/**
 * Yields the members of `channel`, page by page. A page is requested when the loop reaches it. If members have joined
 * or left meanwhile, the pages together may be stale; `roster` stays current.
 */
export async function* members<Info = unknown>(
  mr: Pick<Client<any>, 'subscribe'>,
  channel: string,
  { limit = 1000, signal, timeoutMs }: { readonly limit?: number; readonly signal?: AbortSignal | undefined; readonly timeoutMs?: number } = {},
): AsyncGenerator<MembersPage<Info>> {
  const { ask } = mr as unknown as { ask: Ask };
  for (let after: string | undefined; ; ) {
    const page = await ask('presence', { channel, members: true, limit, ...(after && { after }) }, signalOf(signal, timeoutMs));
    yield { count: page.count, members: page.members as MembersPage<Info>['members'] };
    after = page.next;
    if (!after) return;
  }
}
