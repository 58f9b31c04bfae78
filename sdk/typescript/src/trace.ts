// Trace contexts of publications. Each event shows the context of its publisher as `trace`; a client of `traced` also
// publishes with a context.
//
//   import { millrace } from '@millrace/client';
//   import { traced } from '@millrace/client/trace';
//   const mr = traced(millrace('https://example.com'), () => currentTraceparent());
//   mr.subscribe('orders').on(({ trace, data }) => handle(data, trace));
//   await mr.publish('orders', { id: 7 });
//
// A context is the value of a `traceparent` header. Source: W3C Trace Context, level 1, section 3.2;
// docs/how-to/trace-a-message.md.
import { payloadOf, randomKey } from './client.js';
import type { Ask } from './link.js';
import { offsetOf } from './position.js';
import type { Client, Published, PublishOptions } from './types.js';

export interface TracedPublishOptions extends PublishOptions {
  /** Context of this publication. Default: what the function given to `traced` returns. */
  readonly trace?: string | undefined;
}

/** A client whose `publish` takes a trace context. */
export type Traced<C extends Pick<Client<any>, 'publish'>> = Omit<C, 'publish'> & {
  publish(channel: Parameters<C['publish']>[0], data: Parameters<C['publish']>[1], options?: TracedPublishOptions): Promise<Published>;
};

/**
 * Returns a client over the connection of `mr`, which also publishes the trace context. `current` returns the context
 * of the running operation, if any: applications connect it to their tracer. The server ignores contexts that are
 * malformed or not sampled.
 */
export function traced<C extends Pick<Client<any>, 'publish'>>(mr: C, current: () => string | undefined = () => undefined): Traced<C> {
  const { ask } = mr as unknown as { ask: Ask };
  const publish = async (channel: string, data: unknown, { trace = current(), signal, key, ttl, idempotencyKey = randomKey() }: TracedPublishOptions = {}): Promise<Published> => {
    const { position } = await ask('publish', { channel, ...payloadOf(data), key, ttl, idempotency_key: idempotencyKey, trace }, signal);
    return { position, offset: offsetOf(position) };
  };
  return Object.create(mr, { publish: { value: publish } }) as Traced<C>;
}
