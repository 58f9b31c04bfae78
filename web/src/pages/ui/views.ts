/** The operator pages. A new one needs an entry here, its component in pages.ts, and an icon in Icon.svelte. */
export interface View {
  /** Last segment of the address; empty for the overview. */
  readonly name: string;
  readonly title: string;
  /** Pressed after `g`, opens the page. */
  readonly key: string;
}

export const VIEWS = [
  { name: '', title: 'Overview', key: 'o' },
  { name: 'connections', title: 'Connections', key: 'c' },
  { name: 'channels', title: 'Channels', key: 'h' },
  { name: 'slow', title: 'Slow readers', key: 's' },
  { name: 'cluster', title: 'Cluster', key: 'l' },
  { name: 'threads', title: 'Threads', key: 't' },
  { name: 'rooms', title: 'Rooms', key: 'r' },
  { name: 'hooks', title: 'Hooks', key: 'k' },
  { name: 'config', title: 'Configuration', key: 'f' },
] as const satisfies readonly View[];

export type ViewName = (typeof VIEWS)[number]['name'];

export const ROOT = '/ui';
export const pathOf = (view: View): string => (view.name ? `${ROOT}/${view.name}` : ROOT);
export const viewAt = (path: string): (typeof VIEWS)[number] => VIEWS.find((view) => pathOf(view) === path.replace(/\/+$/, '')) ?? VIEWS[0];
