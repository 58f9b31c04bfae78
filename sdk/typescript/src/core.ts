// The client without transports. The application passes the transports that it needs, so that its bundle contains only
// these.
//
//   import { client } from '@millrace/client/core';
//   import { websocket } from '@millrace/client/websocket';
//   const mr = client('https://example.com', [websocket]);
//
// Wildcards are enabled by the fourth argument: `client(url, [websocket], {}, wildcards)`. `history(mr, channel)`,
// `pages(mr, channel)`, `presence(mr, channel)` and `rpc(mr, method)` are functions, so that a bundle contains them
// only if they are used.
export { client, type Core } from './client.js';
export { MillraceError, type ErrorCode } from './errors.js';
export { history, pages, presence, rpc } from './extras.js';
export { wildcards } from './wildcards.js';
export type { Transport } from './link.js';
export type * from './types.js';
