// Long polling: the server holds each request until it has data. Source: docs/reference/protocol.md, "Reading".
import { polling } from './polling.js';
import type { Transport } from '../link.js';

/** Seconds for which a request is held. Common proxies close a request after 30 s. */
const WAIT = 25;

export const longPoll: Transport = {
  name: 'long-poll',
  open: (host) => polling('long-poll', host, { wait: WAIT, everyMs: 0 }),
};
