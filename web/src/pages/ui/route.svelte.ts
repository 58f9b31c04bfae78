// The address of the page: `/ui/VIEW?..`. The filters of a page are in its query, so that a link shares them.
import { ROOT, viewAt } from './views';

let view = $state.raw(viewAt(location.pathname));
let query = $state.raw(new URLSearchParams(location.search));

export const route = {
  get view() {
    return view;
  },
  get query() {
    return query;
  },
};

/** A filter is applied when typing has stopped for this long, ms. */
const TYPING_MS = 300;
/** Changes of the query that wait for the end of typing. */
let typed: Readonly<Record<string, string | undefined>> = {};
let typing: ReturnType<typeof setTimeout> | undefined;

function read(): void {
  clearTimeout(typing);
  typed = {};
  view = viewAt(location.pathname);
  query = new URLSearchParams(location.search);
}

addEventListener('popstate', read);

/** Opens a page of this application, for example `/ui/channels?channel=a`. */
export function go(to: string): void {
  if (to !== location.pathname + location.search) history.pushState(undefined, '', to);
  read();
}

/** Changes parameters of the query without a new entry in the history. An empty value removes its parameter. */
export function setQuery(changes: Readonly<Record<string, string | undefined>>): void {
  const next = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries({ ...typed, ...changes })) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  const text = next.toString();
  history.replaceState(history.state, '', location.pathname + (text && `?${text}`));
  read();
}

/** Changes parameters of the query when typing has stopped, so that the server is not asked for each key. */
export function setQueryTyped(changes: typeof typed): void {
  typed = { ...typed, ...changes };
  clearTimeout(typing);
  typing = setTimeout(() => setQuery({}), TYPING_MS);
}

/** Opens links of this application without loading the page again. The browser opens links with a modifier key. */
export function onLink(event: MouseEvent): void {
  const link = event.target instanceof Element ? event.target.closest('a') : null;
  if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || !(url.pathname === ROOT || url.pathname.startsWith(`${ROOT}/`)) || link.target) return;
  event.preventDefault();
  go(url.pathname + url.search);
}

/** Address of a channel's page. */
export const channelPath = (channel: string): string => `${ROOT}/channels?channel=${encodeURIComponent(channel)}`;
