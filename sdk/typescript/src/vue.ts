// Composables for Vue 3.
//
//   import { MillracePlugin, useLive } from '@millrace/client/vue';
//   createApp(App).use(MillracePlugin, millrace('https://example.com'));
//   const car = useLive(() => `cars/${props.id}/telemetry`); // {{ car.data?.speed }}
//
// Source: docs/how-to/vue.md. The snapshots and their subscriptions come from store.ts.
import { computed, getCurrentInstance, getCurrentScope, inject, onMounted, onScopeDispose, provide, shallowRef, toValue, watch, type App, type InjectionKey, type MaybeRefOrGetter, type ShallowRef } from 'vue';
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

/** A channel of the application, or `undefined` while the component has none: then nothing is subscribed. */
type ChannelArg<C extends ChannelOf<Registered>> = MaybeRefOrGetter<C | undefined>;
type Payload<C extends ChannelOf<Registered>> = Match<Registered, C>;
type Snapshot<S> = Readonly<ShallowRef<S>>;

const KEY: InjectionKey<StoreClient> = Symbol('Millrace client');

/** Passes a client to all components of the application. The application closes the client. */
export const MillracePlugin = {
  install(app: App, client: StoreClient): void {
    app.provide(KEY, client);
  },
};

/** Passes a client to all components inside the current one. */
export function provideMillrace(client: StoreClient): void {
  provide(KEY, client);
}

/** Returns the client of the application, or of the nearest component that has called `provideMillrace`. */
export function useMillrace(): Client<Registered> {
  const client = inject(KEY, undefined);
  if (!client) throw new MillraceError('invalid', 'this component has no Millrace client: call app.use(MillracePlugin, client)');
  return client as Client<Registered>;
}

/** Reads the store that `make` returns. The store is made again if `key` changes. */
function useStore<S, K extends Store<S>>(key: () => string, make: (client: StoreClient) => K & Store<S>): [Snapshot<S>, () => K] {
  const client = useMillrace();
  let store = make(client);
  let off: (() => void) | undefined;
  const inBrowser = typeof document !== 'undefined';
  const snapshot = shallowRef(inBrowser ? store.get() : store.initial);
  const read = (): void => void (snapshot.value = store.get());
  const open = (): void => {
    off = store.subscribe(read);
    read();
  };
  // A server renders the initial snapshot and does not connect. The browser's first snapshot must be the same, so that
  // the page of the server can be hydrated. Therefore a component subscribes only when it is mounted.
  if (getCurrentInstance()) onMounted(open);
  else if (inBrowser) open();
  const changed = (): void => {
    store = make(client);
    off?.();
    if (off) open();
    else read();
  };
  watch(computed(key), changed, { flush: 'sync' });
  if (getCurrentScope()) onScopeDispose(() => off?.());
  return [snapshot, () => store];
}

/** The newest message of a channel. */
export function useLive<C extends ChannelOf<Registered>>(channel: ChannelArg<C>, options?: MaybeRefOrGetter<LiveOptions<Payload<C>> | undefined>): Snapshot<Live<Payload<C>>> {
  return useStore(() => stores.keyOf(toValue(channel), toValue(options)), (client) => stores.live<Payload<C>>(client, toValue(channel), toValue(options)))[0];
}

/** The newest messages of a channel, oldest first; 100, unless `max` is given. */
export function useMessages<C extends ChannelOf<Registered>>(channel: ChannelArg<C>, options?: MaybeRefOrGetter<MessagesOptions<Payload<C>> | undefined>): Snapshot<Messages<Payload<C>>> {
  return useStore(() => stores.keyOf(toValue(channel), toValue(options)), (client) => stores.messages<Payload<C>>(client, toValue(channel), toValue(options)))[0];
}

/** A keyed state, with `set` and `delete`. */
export function useKeyedState<C extends ChannelOf<Registered>>(channel: ChannelArg<C>, options?: MaybeRefOrGetter<KeyedOptions<Payload<C>> | undefined>): Snapshot<Keyed<Payload<C>>> {
  return useStore(() => stores.keyOf(toValue(channel), toValue(options)), (client) => stores.keyed<Payload<C>>(client, toValue(channel), toValue(options)))[0];
}

/** The members of a channel. */
export function useRoster<Info = unknown>(channel: MaybeRefOrGetter<ChannelOf<Registered> | undefined>, options?: MaybeRefOrGetter<KeyedOptions<Member<Info>> | undefined>): Snapshot<Present<Info>> {
  return useStore(() => stores.keyOf(toValue(channel), toValue(options)), (client) => stores.roster<Info>(client, toValue(channel), toValue(options)))[0];
}

/** The connection of the client. This only observes: it does not connect. */
export function useConnection(options?: { readonly updates?: Updates }): Snapshot<Connection> {
  return useStore(() => stores.keyOf(options), (client) => stores.connection(client, options))[0];
}

/** Publishes to a channel. `pending` and `error` of `state` belong to this component. */
export function usePublish<C extends ChannelOf<Registered>>(channel: ChannelArg<C>): { readonly state: Snapshot<Publishing>; readonly publish: (data: Payload<C>, options?: PublishOptions) => Promise<Published | undefined> } {
  const [state, store] = useStore(() => stores.keyOf(toValue(channel)), (client) => stores.publisher<Payload<C>>(client, toValue(channel)));
  return { state, publish: (data, options) => store().publish(data, options) };
}
