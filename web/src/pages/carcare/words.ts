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
  driving: 'Driving',
  scoreOf: 'Score {a} of 100',
  thisDrive: 'This drive',
  lastDrive: 'Last drive',
  per100: 'Last 100 km',
  drives: 'Drives',
  points: '{a} points per 100 km',
  inProgress: 'in progress',
  noEvents: 'no events',
  alerts: 'Alerts',
  noAlerts: 'No alerts in the last 24 hours.',
  whatToDo: 'What to do',
  geofences: 'Geofences',
  noGeofences: 'No geofences. A geofence reports when a car enters or leaves an area.',
  name: 'Name',
  radius: 'Radius in meters',
  addHere: 'Add around the middle of the map',
  delete: 'Delete {a}',
  notSaved: 'The geofence was not saved: {a}.',
  settings: 'Units and language',
  units: 'Units',
  metric: 'Kilometers',
  imperial: 'Miles',
  language: 'Language',
  noSelection: 'Choose a car on the map or in the list to see its instruments.',
  recentEvents: 'Recent events',
} as const;

export type Word = keyof typeof en;

/** Name and advice of each kind of event, by its `type`. */
export type Texts = Record<string, readonly [name: string, advice: string]>;

const enEvents: Texts = {
  'harsh-braking': ['Harsh braking', 'Keep more distance and release the accelerator earlier.'],
  'harsh-acceleration': ['Harsh acceleration', 'Accelerate more gently: it saves fuel and costs only seconds.'],
  'harsh-cornering': ['Harsh cornering', 'Slow down before the bend, not in it.'],
  'gear-too-high': ['Gear too high', 'Shift down: the engine labors at low revolutions.'],
  'gear-too-low': ['Gear too low', 'Shift up: a higher gear needs less fuel at this speed.'],
  'high-rpm': ['High revolutions', 'Shift up or ease off: the engine runs at high revolutions.'],
  idling: ['Idling', 'Switch the engine off if you wait longer.'],
  overheating: ['Engine overheats', 'Switch the heater to full, stop safely, and let the engine cool. Do not open the hot radiator.'],
  'oil-pressure': ['Low oil pressure', 'Stop safely and switch the engine off at once; then check the oil level.'],
  'low-fuel': ['Low fuel', 'Refuel soon.'],
  'trouble-code': ['Trouble code', 'Have the code read and repaired.'],
  lamp: ['Engine lamp lit', 'If it flashes, reduce speed; have the car checked soon.'],
  accident: ['Possible accident', 'Call the driver; if there is no answer, call the emergency services (112).'],
  'geofence-enter': ['Entered', 'The car has entered the area.'],
  'geofence-exit': ['Left', 'The car has left the area.'],
};

export const LANGUAGES = { en: 'English', de: 'Deutsch' } as const;
export type Language = keyof typeof LANGUAGES;

/** All words of a language. */
export interface Dictionary {
  readonly words: Record<Word, string>;
  readonly events: Texts;
}

export const ENGLISH: Dictionary = { words: en, events: enEvents };

/** Loads the words of a language. Only English is part of the first load. */
export const load = async (language: Language): Promise<Dictionary> =>
  language === 'de' ? (await import('./words.de')).GERMAN : ENGLISH;

/** Returns a word with its places `{a}` and `{b}` filled in. */
export function word({ words }: Dictionary, key: Word, a: string | number = '', b: string | number = ''): string {
  return words[key].replace('{a}', String(a)).replace('{b}', String(b));
}

/** Returns the name and the advice of a kind of event; an unknown kind has its own name, and no advice. */
export function textOf({ events }: Dictionary, type: string): readonly [name: string, advice: string] {
  return events[type] ?? [type.replaceAll('-', ' '), ''];
}
