// Reactive values for Svelte 5.
//
//   import { live, setMillrace } from '@millrace/client/svelte';
//   setMillrace(millrace('https://example.com')); // in a component above
//   const car = live(() => `cars/${id}/telemetry`); // {car.current.data?.speed}
//
// Source: docs/how-to/svelte.md. The snapshots and their subscriptions come from store.ts.
import { getContext, setContext } from 'svelte';
import { createSubscriber } from 'svelte/reactivity';
import { MillraceError } from './errors.js';
import type { Member } from './roster.js';
import * as stores from './store.js';
import type { Connection, Keyed, KeyedOptions, Live, LiveOptions, Messages, MessagesOptions, Present, Publishing, Registered, Store, StoreClient, Updates } from './store.js';
import type { ChannelOf, Client, Match, Published, PublishOptions } from './types.js';

export { MillraceError, type ErrorCode } from './errors.js';
export type { Member } from './roster.js';
export type { StateEntry } from './state.js';
export type * from './store.js';
export type * from './types.js';

/** A value, or a function that returns it and is reactive: `() => props.id`. */
export type MaybeGetter<T> = T | (() => T);
/** A channel of the application, or `undefined` while the component has none: then nothing is subscribed. */
type ChannelArg<C extends ChannelOf<Registered>> = MaybeGetter<C | undefined>;
type Payload<C extends ChannelOf<Registered>> = Match<Registered, C>;

/** A value that changes. Read `current` in a template, `$derived` or `$effect`. */
export interface Current<S> {
  readonly current: S;
}

const KEY = Symbol('Millrace client');

/** Passes a client to all components inside the current one. The application closes the client. */
export function setMillrace(client: StoreClient): void {
  setContext(KEY, client);
}

/** Returns the client of the nearest component that has called `setMillrace`. */
export function getMillrace(): Client<Registered> {
  const client = getContext<Client<Registered> | undefined>(KEY);
  if (!client) throw new MillraceError('invalid', 'this component has no Millrace client: call setMillrace(client) in a component above');
  return client;
}

const valueOf = <T>(value: MaybeGetter<T>): T => (typeof value === 'function' ? (value as () => T)() : value);

/** Returns a function that returns the store of the current arguments, which depends on them if they are reactive. */
function storeOf<A extends unknown[], S, K extends Store<S>>(make: (client: StoreClient, ...args: A) => K & Store<S>, ...args: { [I in keyof A]: MaybeGetter<A[I]> }): () => K {
  const client = getMillrace();
  let key: string | undefined;
  let store!: K;
  let track!: () => void;
  return () => {
    const values = args.map(valueOf) as A;
    const newKey = stores.keyOf(...values);
    if (newKey !== key) {
      key = newKey;
      const made = make(client, ...values);
      store = made;
      track = createSubscriber(made.subscribe);
    }
    // Subscribes while a template, $derived or $effect reads the value, and runs it again after a change.
    track();
    return store;
  };
}

const currentOf = <S>(store: () => Store<S>): Current<S> => ({
  get current() {
    return store().get();
  },
});

/** The newest message of a channel. */
export function live<C extends ChannelOf<Registered>>(channel: ChannelArg<C>, options?: MaybeGetter<LiveOptions<Payload<C>> | undefined>): Current<Live<Payload<C>>> {
  return currentOf(storeOf(stores.live<Payload<C>>, channel, options));
}

/** The newest messages of a channel, oldest first; 100, unless `max` is given. */
export function messages<C extends ChannelOf<Registered>>(channel: ChannelArg<C>, options?: MaybeGetter<MessagesOptions<Payload<C>> | undefined>): Current<Messages<Payload<C>>> {
  return currentOf(storeOf(stores.messages<Payload<C>>, channel, options));
}

/** A keyed state, with `set` and `delete`. */
export function keyedState<C extends ChannelOf<Registered>>(channel: ChannelArg<C>, options?: MaybeGetter<KeyedOptions<Payload<C>> | undefined>): Current<Keyed<Payload<C>>> {
  return currentOf(storeOf(stores.keyed<Payload<C>>, channel, options));
}

/** The members of a channel. */
export function roster<Info = unknown>(channel: MaybeGetter<ChannelOf<Registered> | undefined>, options?: MaybeGetter<KeyedOptions<Member<Info>> | undefined>): Current<Present<Info>> {
  return currentOf(storeOf(stores.roster<Info>, channel, options));
}

/** The connection of the client. This only observes: it does not connect. */
export function connection(options?: { readonly updates?: Updates }): Current<Connection> {
  return currentOf(storeOf(stores.connection, options));
}

/** Publishes to a channel. `pending` and `error` belong to this component. */
export function publisher<C extends ChannelOf<Registered>>(channel: ChannelArg<C>): Current<Publishing> & { readonly publish: (data: Payload<C>, options?: PublishOptions) => Promise<Published | undefined> } {
  const store = storeOf(stores.publisher<Payload<C>>, channel);
  return Object.assign(currentOf(store), { publish: (data: Payload<C>, options?: PublishOptions) => store().publish(data, options) });
}
