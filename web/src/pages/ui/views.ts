import type { Component } from 'svelte';
import Overview from './overview/Overview.svelte';

/** One operator page. A new one needs an entry here, and an icon in Icon.svelte. */
export interface View {
  /** Last segment of the address; empty for the overview. */
  readonly name: string;
  readonly title: string;
  /** Pressed after `g`, opens the page. */
  readonly key: string;
  /** The overview is part of the first load; the other pages are loaded when they are opened. */
  readonly load: () => Component | Promise<Component>;
}

const lazy = (load: () => Promise<{ default: Component }>) => () => load().then((module) => module.default);

export const VIEWS: readonly View[] = [
  { name: '', title: 'Overview', key: 'o', load: () => Overview },
  { name: 'connections', title: 'Connections', key: 'c', load: lazy(() => import('./connections/Connections.svelte')) },
  { name: 'channels', title: 'Channels', key: 'h', load: lazy(() => import('./channels/Channels.svelte')) },
  { name: 'slow', title: 'Slow readers', key: 's', load: lazy(() => import('./Slow.svelte')) },
  { name: 'cluster', title: 'Cluster', key: 'l', load: lazy(() => import('./Cluster.svelte')) },
  { name: 'threads', title: 'Threads', key: 't', load: lazy(() => import('./Threads.svelte')) },
  { name: 'rooms', title: 'Rooms', key: 'r', load: lazy(() => import('./Rooms.svelte')) },
  { name: 'hooks', title: 'Hooks', key: 'k', load: lazy(() => import('./Hooks.svelte')) },
  { name: 'config', title: 'Configuration', key: 'f', load: lazy(() => import('./Config.svelte')) },
];

export const ROOT = '/ui';
export const pathOf = (view: View): string => (view.name ? `${ROOT}/${view.name}` : ROOT);
export const viewAt = (path: string): View => VIEWS.find((view) => pathOf(view) === path.replace(/\/+$/, '')) ?? VIEWS[0]!;
