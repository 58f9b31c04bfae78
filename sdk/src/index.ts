// The client with every transport; which one it uses is raced at connect time.
import { client } from './client.js';
import type { Channels, Client, ConnectOptions } from './types.js';
import { longPoll } from './transports/long-poll.js';
import { poll } from './transports/poll.js';
import { sse } from './transports/sse.js';
import { httpStream } from './transports/stream.js';
import { websocket } from './transports/websocket.js';

export * from './core.js';

/** Connects on the first `subscribe`, `publish` or `ready`. `url` is the server's, with the path before `/v1` if there is one. */
export function millrace<M = Channels>(url: string | URL, options: ConnectOptions = {}): Client<M> {
  return client<M>(url, [websocket, httpStream, sse, longPoll, poll], options);
}
