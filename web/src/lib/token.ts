// Keeps the token of this tab, or of this browser. A link carries the token in its fragment, which is not sent to
// servers and not logged. A person can also paste the token into a page.
import type { MillraceError, State } from '@millrace/client';

const KEY = 'millrace-token';
/** Source: RFC 6750, section 2.1. */
const TOKEN = '[\\w.~+/-]+=*';

/**
 * Returns the token of this tab, or the one that this browser keeps, if any. A token in the address bar is removed
 * there, so that it is not shared with the page's address.
 */
export function takeToken(): string | undefined {
  const brought = new RegExp(`^#token=(${TOKEN})$`).exec(location.hash)?.[1];
  if (!brought) return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? undefined;
  sessionStorage.setItem(KEY, brought);
  history.replaceState(history.state, '', location.pathname + location.search);
  return brought;
}

/** Returns the token in a pasted text, which is a token or a link with a token. */
export const tokenIn = (text: string): string | undefined => new RegExp(`^(?:\\S*#token=)?(${TOKEN})$`).exec(text.trim())?.[1];

/**
 * Stores the token for this tab. Pages read the token when they load. With `onDevice`, this browser keeps the token, so
 * that new tabs and the installed app have it, too. Without, a token that was kept is forgotten.
 */
export function keepToken(token: string, onDevice = false): void {
  sessionStorage.setItem(KEY, token);
  if (onDevice) localStorage.setItem(KEY, token);
  else localStorage.removeItem(KEY);
}

/** Forgets the token of this tab and of this browser. */
export function forgetToken(): void {
  sessionStorage.removeItem(KEY);
  localStorage.removeItem(KEY);
}

/** Returns a link to `path` on `origin` that passes the token to another person. */
export function linkFor(origin: string, path: string, token: string | undefined): string {
  return origin + path + (token ? `#token=${token}` : '');
}

/**
 * Returns the server's message if it refused this page for lack of a valid token; `undefined` otherwise. `ended` is the
 * cause with which a subscription ended.
 */
export function refusalOf(state: State, ended?: MillraceError): string | undefined {
  const cause = state.name === 'closed' ? state.cause : ended;
  return cause?.code === 'auth' ? cause.message : undefined;
}
