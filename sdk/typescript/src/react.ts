// Hooks for React 18 and 19.
//
//   import { MillraceProvider, useLive } from '@millrace/client/react';
//   <MillraceProvider client={millrace('https://example.com')}>..</MillraceProvider>
//   const { data, error } = useLive('cars/1/telemetry');
//
// Source: docs/how-to/react.md. The snapshots and their subscriptions come from store.ts.
import { createContext, createElement, useContext, useMemo, useSyncExternalStore, type ReactElement, type ReactNode } from 'react';
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

/** A channel of the application, or `undefined` while the component has none: then the hook does not connect. */
type ChannelArg<C extends ChannelOf<Registered>> = C | undefined;
type Payload<C extends ChannelOf<Registered>> = Match<Registered, C>;

const ClientContext = createContext<StoreClient | undefined>(undefined);

/** Passes a client to the hooks of all components inside. The application closes the client. */
export function MillraceProvider({ client, children }: { readonly client: StoreClient; readonly children?: ReactNode }): ReactElement {
  return createElement(ClientContext.Provider, { value: client }, children);
}

/** Returns the client of the nearest provider. */
export function useMillrace(): Client<Registered> {
  const client = useContext(ClientContext);
  if (!client) throw new MillraceError('invalid', 'this component has no Millrace client: put it inside <MillraceProvider client={..}>');
  return client as Client<Registered>;
}

/** Reads the store that `make` returns. The store is made again if the client or `key` changes. */
function useStore<S, K extends Store<S>>(key: string, make: (client: StoreClient) => K & Store<S>): [S, K] {
  const client = useMillrace();
  const store = useMemo(() => make(client), [client, key]);
  return [useSyncExternalStore(store.subscribe, store.get, () => store.initial), store];
}

/** The newest message of a channel. */
export function useLive<C extends ChannelOf<Registered>>(channel: ChannelArg<C>, options?: LiveOptions<Payload<C>>): Live<Payload<C>> {
  return useStore(stores.keyOf(channel, options), (client) => stores.live<Payload<C>>(client, channel, options))[0];
}

/** The newest messages of a channel, oldest first; 100, unless `max` is given. */
export function useMessages<C extends ChannelOf<Registered>>(channel: ChannelArg<C>, options?: MessagesOptions<Payload<C>>): Messages<Payload<C>> {
  return useStore(stores.keyOf(channel, options), (client) => stores.messages<Payload<C>>(client, channel, options))[0];
}

/** A keyed state, with `set` and `delete`. */
export function useKeyedState<C extends ChannelOf<Registered>>(channel: ChannelArg<C>, options?: KeyedOptions<Payload<C>>): Keyed<Payload<C>> {
  return useStore(stores.keyOf(channel, options), (client) => stores.keyed<Payload<C>>(client, channel, options))[0];
}

/** The members of a channel. */
export function useRoster<Info = unknown>(channel: ChannelOf<Registered> | undefined, options?: KeyedOptions<Member<Info>>): Present<Info> {
  return useStore(stores.keyOf(channel, options), (client) => stores.roster<Info>(client, channel, options))[0];
}

/** The connection of the client. This hook only observes: it does not connect. */
export function useConnection(options?: { readonly updates?: Updates }): Connection {
  return useStore(stores.keyOf(options), (client) => stores.connection(client, options))[0];
}

/** Publishes to a channel. `pending` and `error` belong to this component. */
export function usePublish<C extends ChannelOf<Registered>>(channel: ChannelArg<C>): Publishing & { readonly publish: (data: Payload<C>, options?: PublishOptions) => Promise<Published | undefined> } {
  const [state, { publish }] = useStore(stores.keyOf(channel), (client) => stores.publisher<Payload<C>>(client, channel));
  return { ...state, publish };
}
