import { VIEWS } from './views';

/** The keys of keys.ts and their effects, for people. */
export const KEYS: readonly (readonly [keys: string, effect: string])[] = [
  ...VIEWS.map((view) => [`g ${view.key}`, view.title] as const),
  ['Ctrl K', 'Search and commands'],
  ['/', 'Filter this list'],
  ['p', 'Pause or resume updates'],
  ['?', 'Show these keys'],
  ['Esc', 'Close'],
  ['← →', 'Move the time cursor of a chart'],
];
