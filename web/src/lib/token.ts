// The token of this tab. A link brings it in its fragment, which no server and no log sees; or a person pastes it into a page.
import type { MillraceError, State } from '@millrace/client';

const KEY = 'millrace-token';
/** Source: RFC 6750, section 2.1. */
const TOKEN = '[\\w.~+/-]+=*';

/** This tab's token, if it has one. A token in the address bar is removed from it, so that it is not passed on with the page's address. */
export function takeToken(): string | undefined {
  const brought = new RegExp(`^#token=(${TOKEN})$`).exec(location.hash)?.[1];
  if (!brought) return sessionStorage.getItem(KEY) ?? undefined;
  sessionStorage.setItem(KEY, brought);
  history.replaceState(history.state, '', location.pathname + location.search);
  return brought;
}

/** The token in a pasted text: the token itself, or a link that brings one. */
export const tokenIn = (text: string): string | undefined => new RegExp(`^(?:\\S*#token=)?(${TOKEN})$`).exec(text.trim())?.[1];

/** Makes this the token of the tab. Pages read it when they load. */
export const keepToken = (token: string): void => sessionStorage.setItem(KEY, token);

/** `path` on `origin` for another person who shall have the same token. */
export function linkFor(origin: string, path: string, token: string | undefined): string {
  return origin + path + (token ? `#token=${token}` : '');
}

/** What the server said when it refused this page for want of a valid token; `undefined` if it has not refused it. `ended`: of a subscription. */
export function refusalOf(state: State, ended?: MillraceError): string | undefined {
  const cause = state.name === 'closed' ? state.cause : ended;
  return cause?.code === 'auth' ? cause.message : undefined;
}
