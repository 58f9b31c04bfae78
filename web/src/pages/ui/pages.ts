import type { Component } from 'svelte';
import Overview from './overview/Overview.svelte';
import type { ViewName } from './views';

const lazy = (load: () => Promise<{ default: Component }>) => () => load().then((module) => module.default);

/** The components of the pages. The overview is part of the first load; the others are loaded when they are opened. */
export const PAGES: Readonly<Record<ViewName, () => Component | Promise<Component>>> = {
  '': () => Overview,
  connections: lazy(() => import('./connections/Connections.svelte')),
  channels: lazy(() => import('./channels/Channels.svelte')),
  slow: lazy(() => import('./Slow.svelte')),
  cluster: lazy(() => import('./Cluster.svelte')),
  threads: lazy(() => import('./Threads.svelte')),
  rooms: lazy(() => import('./Rooms.svelte')),
  hooks: lazy(() => import('./Hooks.svelte')),
  config: lazy(() => import('./Config.svelte')),
};
