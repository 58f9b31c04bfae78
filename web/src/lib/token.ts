// The token that a link has brought, in its fragment: no server, and no log on the way, sees that part of a URL.

const KEY = 'millrace-token';

/** This tab's token, if it has one. One in the address bar is taken out of it, so that it is not passed on with the page's address. */
export function takeToken(): string | undefined {
  const brought = /^#token=([\w.~+/-]+=*)$/.exec(location.hash)?.[1];
  if (!brought) return sessionStorage.getItem(KEY) ?? undefined;
  sessionStorage.setItem(KEY, brought);
  history.replaceState(history.state, '', location.pathname + location.search);
  return brought;
}

/** `path` on `origin` for somebody else who shall have the same token. */
export function linkFor(origin: string, path: string, token: string | undefined): string {
  return origin + path + (token ? `#token=${token}` : '');
}
