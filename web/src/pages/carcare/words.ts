import type { TokenWords } from '../../lib/TokenForm.svelte';
import type { PageTransport } from '../../lib/transports';
import type { LaterWord } from './panels/words';

/** Words of this page in its languages. A missing word is an error of the types. */
const en = {
  car: 'Car',
  fleet: 'Fleet',
  live: 'live',
  late: 'late',
  off: 'off',
  of: '{a} of {b} live',
  searchCars: 'Search cars',
  searchHint: 'Car number, street, status or event',
  noCars: 'No cars yet. Start a simulated fleet in a terminal:',
  noMatch: 'No car matches. Change the search or the filter to see more cars.',
  more: '{a} more cars. Use the search to find them.',
  copy: 'Copy command',
  copied: 'Copied',
  tokenNeeded: 'The server requires a token. Enter a valid token to see the cars.',
  show: 'Show',
  all: 'All cars',
  withAlerts: 'Cars with alerts',
  sort: 'Sort by',
  byNumber: 'Number',
  bySpeed: 'Speed',
  byScore: 'Score, lowest first',
  byAge: 'Last update',
  group: 'Group {a}',
  speed: 'Speed',
  engine: 'Engine',
  coolant: 'Coolant',
  lastUpdate: 'Last update',
  ago: '{a} ago',
  gear: 'Gear',
  heading: 'Heading',
  fuel: 'Fuel',
  oil: 'Oil',
  replay: 'Replay a drive',
  scoreOf: 'Score {a} of 100',
  alerts: 'Alerts',
  geofences: 'Geofences',
  settings: 'Units and language',
  noSelection: 'Choose a car on the map or in the list to see its instruments.',
  recentEvents: 'Recent events',
  notifications: 'Notifications',
  askCar: 'Ask the car',
  files: 'Files',
  notLoaded: 'This part cannot be loaded without a connection.',
  tryAgain: 'Try again',
  compass: 'N NE E SE S SW W NW',
  speedNow: 'Speed over 2 minutes: now {a} {c}, highest {b} {c}.',
  noSpeed: 'No speed received yet.',
  twoMinutesAgo: '2 min ago',
  speedIn: 'Speed, {a}',
  now: 'now',
  unknown: 'unknown',
  rpm: 'rpm',
  view: 'View',
  showMore: 'Show more',
  showLess: 'Show less',
  map: 'Map',
  documentation: 'Documentation',
  zoomIn: 'Zoom in',
  zoomOut: 'Zoom out',
  showAll: 'Show all cars',
  follow: 'Follow the selected car',
  startPage: 'Millrace start page',
  noMap: 'The map cannot be drawn: {a}. Enable WebGL in the browser, then reload the page. The list and the instruments still work.',
  offline: 'You are offline.',
  lastKnown: 'The map shows the last known positions.',
  disconnected: 'Disconnected.',
  closed: 'The connection was closed.',
  lost: 'Connection lost.',
  reconnecting: 'Reconnecting',
  inSeconds: 'in {a} s',
  connectingOver: 'Connecting over {a}…',
  reload: 'Reload',
  retryNow: 'Retry now',
  transport: 'Transport',
  noneYet: 'none yet',
  connected: 'connected',
  connecting: 'connecting',
  isClosed: 'closed',
  isOffline: 'offline',
  hidden: 'hidden',
  notConnected: 'Not connected',
  isConnecting: 'Connecting',
} as const;

export type Word = keyof typeof en;

/** Name of each kind of event, by its `type`. */
const enEvents: Record<string, string> = {
  'harsh-braking': 'Harsh braking',
  'harsh-acceleration': 'Harsh acceleration',
  'harsh-cornering': 'Harsh cornering',
  'gear-too-high': 'Gear too high',
  'gear-too-low': 'Gear too low',
  'high-rpm': 'High revolutions',
  idling: 'Idling',
  overheating: 'Engine overheats',
  'oil-pressure': 'Low oil pressure',
  'low-fuel': 'Low fuel',
  'trouble-code': 'Trouble code',
  lamp: 'Engine lamp lit',
  accident: 'Possible accident',
  'geofence-enter': 'Entered',
  'geofence-exit': 'Left',
};

export const LANGUAGES = { en: 'English', de: 'Deutsch' } as const;
export type Language = keyof typeof LANGUAGES;

/** All words of a language. */
export interface Dictionary {
  readonly words: Record<Word, string>;
  readonly events: Record<string, string>;
  /** Advice about each kind of event; English has it beside the parts that are loaded later. */
  readonly advice?: Record<string, string>;
  /** Words of the parts that are loaded later; English has them beside these parts. */
  readonly later?: Record<LaterWord, string>;
  /** Texts of trouble codes; the English ones come from the server. */
  readonly token?: TokenWords;
  /** Description of each transport, by its name. */
  readonly transports?: Record<PageTransport, string>;
  readonly trouble?: { readonly meaningOf: (code: string) => string; readonly ADVICE: Record<string, string>; readonly CODES: Record<string, string> };
}

export const ENGLISH: Dictionary = { words: en, events: enEvents };

/** Loads the words of a language. Only English is part of the first load. */
export const load = async (language: Language): Promise<Dictionary> =>
  language === 'de' ? (await import('./words.de')).GERMAN : ENGLISH;

/** Fills in the places `{a}`, `{b}` and `{c}` of a text. */
export const fill = (text: string, places: readonly (string | number)[]): string =>
  text.replace(/\{([abc])\}/g, (_, place: string) => String(places['abc'.indexOf(place)] ?? ''));
