// The client with every transport; which one it uses is raced at connect time.
import { client } from './client.js';
import type { Channels, Client, ConnectOptions } from './types.js';
import { longPoll } from './transports/long-poll.js';
import { poll } from './transports/poll.js';
import { sse } from './transports/sse.js';
import { httpStream } from './transports/stream.js';
import { websocket } from './transports/websocket.js';

export * from './core.js';

/** How long the transport that won is tried first, ms. */
const WINNER_FOR = 30 * 60_000;

/** Connects on the first `subscribe`, `publish` or `ready`. `url` is the server's, with the path before `/v1` if there is one. */
export function millrace<M = Channels>(url: string | URL, options: ConnectOptions = {}): Client<M> {
  const transports = [websocket, httpStream, sse, longPoll, poll];
  if (options.transports && options.transports !== 'auto') return client<M>(url, transports, options);
  const key = `millrace:${url}`;
  const [winner, time] = storage()?.getItem(key)?.split(' ') ?? [];
  if (Date.now() - Number(time) < WINNER_FOR) transports.sort((a, b) => Number(b.name === winner) - Number(a.name === winner));
  const made = client<M>(url, transports, options);
  let chosen = false;
  const { use } = made;
  made.use = (name) => {
    chosen = name !== 'auto';
    return use.call(made, name);
  };
  made.onState((state) => {
    if (state.name === 'open' && !chosen) storage()?.setItem(key, `${state.transport} ${Date.now()}`);
  });
  return made;
}

/** Workers and Node have none; a page may be denied it. */
function storage(): Storage | undefined {
  try {
    return globalThis.sessionStorage;
  } catch {
    return undefined;
  }
}
