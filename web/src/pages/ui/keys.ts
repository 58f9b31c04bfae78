// Keys of the operator pages.
import { VIEWS, type View } from './views';

interface Actions {
  view(view: View): void;
  palette(): void;
  help(): void;
  pause(): void;
}

/** Time within which the second key of `g x` must follow, ms. */
const CHORD_MS = 1_500;

/** Returns the listener for keys of the whole page. Keys that a field or an open dialog needs stay theirs. */
export function keysFor(actions: Actions): (event: KeyboardEvent) => void {
  let chordAt = -Infinity;
  return (event) => {
    const { key } = event;
    if ((event.ctrlKey || event.metaKey) && !event.altKey && key.toLowerCase() === 'k') {
      event.preventDefault();
      return actions.palette();
    }
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector('dialog:modal')) return;
    const view = event.timeStamp - chordAt < CHORD_MS ? VIEWS.find((view) => view.key === key) : undefined;
    chordAt = key === 'g' ? event.timeStamp : -Infinity;
    if (view) actions.view(view);
    else if (key === '?') actions.help();
    else if (key === 'p') actions.pause();
    else if (key === '/') {
      const field = document.querySelector<HTMLInputElement>('[data-filter]');
      if (!field) return;
      field.focus();
      field.select();
    } else return;
    event.preventDefault();
  };
}

const isTyping = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement && (target.isContentEditable || target.matches('textarea, select, input:not([type=radio], [type=checkbox], [type=range])'));
