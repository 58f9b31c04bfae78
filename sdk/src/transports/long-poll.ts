// Polling, held by the server until there is something to say. Source: docs/protocol.md, "Reading".
import { polling } from './polling.js';
import type { Transport } from '../link.js';

/** Seconds a request is held: below the 30 s after which common proxies cut. */
const WAIT = 25;

export const longPoll: Transport = {
  name: 'long-poll',
  open: (host) => polling('long-poll', host, { wait: WAIT, everyMs: 0 }),
};
