// The client without transports: pass those you need, so that only those are in your bundle.
//
//   import { client } from '@millrace/client/core';
//   import { websocket } from '@millrace/client/websocket';
//   const mr = client('https://example.com', [websocket]);
//
// Wildcards are a fourth argument, `client(url, [websocket], {}, wildcards)`; `history(mr, channel)`, `pages(mr, channel)` and `presence(mr, channel)`
// are functions: what is not used is not in the bundle either.
export { client, type Core } from './client.js';
export { MillraceError, type ErrorCode } from './errors.js';
export { history, pages, presence } from './extras.js';
export { wildcards } from './wildcards.js';
export type { Transport } from './link.js';
export type * from './types.js';
