/** Language and units of this page, kept in the browser. */
import { UNKNOWN, formatIn, number } from '../../lib/format';
import type { TRANSPORTS } from '../../lib/transports';
import { ENGLISH, LANGUAGES, fill, load, type Dictionary, type Language, type Word } from './words';

export type Units = 'metric' | 'imperial';

const LANGUAGE_KEY = 'carcare.language';
const UNITS_KEY = 'carcare.units';
const METERS_PER_MILE = 1609.344;

/** Returns a stored value. Storage can be forbidden; then the page starts with its defaults. */
function stored(key: string): string | null {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

function store(key: string, value: string): void {
  try {
    localStorage.setItem(key, value);
  } catch {
    // The choice holds until the page is closed.
  }
}

const isLanguage = (value: string | null): value is Language => value !== null && value in LANGUAGES;

let dictionary = $state.raw<Dictionary>(ENGLISH);
let language = $state<Language>(initialLanguage());
let units = $state<Units>(stored(UNITS_KEY) === 'imperial' ? 'imperial' : 'metric');

function initialLanguage(): Language {
  const chosen = stored(LANGUAGE_KEY);
  const lang = isLanguage(chosen) ? chosen : 'en';
  void speak(lang);
  return lang;
}

/** Shows the words of a language as soon as they are loaded. Without a network, the page keeps its language. */
async function speak(next: Language): Promise<void> {
  try {
    const loaded = await load(next);
    // A later choice may have been loaded first.
    if (next !== language) return;
    formatIn(next);
    dictionary = loaded;
    document.documentElement.lang = next;
  } catch {
    language = document.documentElement.lang as Language;
  }
}

export const settings = {
  get language(): Language {
    return language;
  },
  set language(next: Language) {
    language = next;
    store(LANGUAGE_KEY, next);
    void speak(next);
  },
  get units(): Units {
    return units;
  },
  set units(next: Units) {
    units = next;
    store(UNITS_KEY, next);
  },
};

/** Returns a word in the chosen language. */
export const t = (key: Word, ...places: readonly (string | number)[]): string => fill(dictionary.words[key], places);

/** Returns the words of the parts that are loaded later, unless the language is English. */
export const laterWords = (): Dictionary['later'] => dictionary.later;

/** Returns the advice about kinds of events, unless the language is English. */
export const laterAdvice = (): Dictionary['advice'] => dictionary.advice;

/** Returns the words of the form for a token, unless the language is English. */
export const tokenWords = (): Dictionary['token'] => dictionary.token;

/** Returns what a transport does, in the chosen language. */
export const howOf = ({ name, how }: (typeof TRANSPORTS)[number]): string => dictionary.transports?.[name] ?? how;

/** Returns what a service worker needs to show notifications in the chosen language; `null` for English. */
export const spoken = () => (dictionary === ENGLISH ? null : { car: dictionary.words.car, events: dictionary.events, advice: { ...dictionary.advice, ...dictionary.trouble?.ADVICE }, codes: dictionary.trouble?.CODES });

/** Returns meaning and advice of a trouble code in the chosen language, from the English ones of the server. */
export const troubleText = (code: string, meaning = '', advice = ''): readonly [meaning: string, advice: string] => {
  const { trouble } = dictionary;
  return trouble ? [trouble.meaningOf(code), trouble.ADVICE[advice] ?? advice] : [meaning, advice];
};

/** Returns the name of an event that a car reports, such as `trouble_code`. */
export const eventName = (event: string, code?: string): string => [nameOf(event.replaceAll('_', '-')), code].filter(Boolean).join(' ');

/** Returns a heading, such as `NE 45°`. */
export const compass = (heading: number | undefined): string =>
  heading === undefined ? UNKNOWN : `${t('compass').split(' ')[Math.round(heading / 45) % 8]} ${number(heading)}°`;

/** Returns the name of a kind of event; an unknown kind has its own name. */
export const nameOf = (type: string): string => dictionary.events[type] ?? type.replaceAll('-', ' ');

/** Converts m/s to the chosen unit. */
export const speed = (metersPerSecond: number | undefined): number | undefined =>
  metersPerSecond === undefined ? undefined : metersPerSecond * 3.6 * (units === 'metric' ? 1 : 1000 / METERS_PER_MILE);

export const speedUnit = (): string => (units === 'metric' ? 'km/h' : 'mph');

/** Converts meters to kilometers or miles. */
export const distance = (meters: number): number => meters / (units === 'metric' ? 1000 : METERS_PER_MILE);

export const distanceUnit = (): string => (units === 'metric' ? 'km' : 'mi');
