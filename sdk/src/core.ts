// The client without transports: pass those you need, so that only those are in your bundle.
//
//   import { client } from '@millrace/client/core';
//   import { websocket } from '@millrace/client/websocket';
//   const mr = client('https://example.com', [websocket]);
export { client } from './client.js';
export { MillraceError, type ErrorCode } from './errors.js';
export type { Transport } from './link.js';
export type * from './types.js';
