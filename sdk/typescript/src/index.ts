// The client with all transports. At connect time the transports race, and the first to open is used.
import { client } from './client.js';
import { history, pages, presence, rpc } from './extras.js';
import type { Channels, Client, ConnectOptions, TransportName } from './types.js';
import { dataChannel } from './transports/data-channel.js';
import { longPoll } from './transports/long-poll.js';
import { poll } from './transports/poll.js';
import { sse } from './transports/sse.js';
import { httpStream } from './transports/stream.js';
import { websocket } from './transports/websocket.js';
import { wildcards } from './wildcards.js';

export * from './core.js';

/** Time during which the winning transport is tried first, ms. */
const WINNER_FOR = 30 * 60_000;

/**
 * Creates a client that connects on the first `subscribe`, `publish` or `ready`. `url` is the server's URL, with the
 * path before `/v1` if there is one. `widen` is for `@millrace/client/share`, which has a hub of its own.
 */
export function millrace<M = Channels>(url: string | URL, options: ConnectOptions = {}, widen = wildcards): Client<M> {
  const { transports: asked = 'auto' } = options;
  /** Whether the winner is remembered: the application has chosen no transport. */
  let auto = asked === 'auto';
  const transports = [websocket, httpStream, sse, longPoll, poll, dataChannel];
  const key = `millrace:${url}`;
  const [winner, time] = (auto && storage()?.getItem(key)?.split(' ')) || [];
  if (Date.now() - +time! < WINNER_FOR) transports.sort((a, b) => +(b.name === winner) - +(a.name === winner));
  const core = client<M>(url, transports, options, widen);
  core.onState((state) => {
    if (state.name === 'open' && auto) storage()?.setItem(key, `${state.transport} ${Date.now()}`);
  });
  const { use } = core;
  return Object.assign(core, {
    use(name: TransportName | 'auto') {
      auto = name === 'auto' && asked === name;
      return use(name);
    },
    history: history.bind(null, core) as Client<M>['history'],
    pages: pages.bind(null, core) as Client<M>['pages'],
    presence: presence.bind(null, core),
    rpc: rpc.bind(null, core) as Client<M>['rpc'],
  });
}

/** Returns the session storage, or undefined. Workers and Node have none, and a page may be denied access. */
function storage(): Storage | undefined {
  try {
    return globalThis.sessionStorage;
  } catch {
    return undefined;
  }
}
