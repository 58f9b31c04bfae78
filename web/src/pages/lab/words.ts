/** Words of the lab page. */
import { duration } from '../../lib/format';
import type { Form, Outcome, Run } from './api';

export const FORMS: Readonly<Record<Form, string>> = { quick: 'Quick', full: 'Full', thesis: 'As in the thesis' };

export const OUTCOMES: Readonly<Record<Outcome, { readonly word: string; readonly tone: 'good' | 'warn' | 'bad' | 'none' }>> = {
  running: { word: 'Running', tone: 'none' },
  passed: { word: 'Passed', tone: 'good' },
  missed: { word: 'Missed', tone: 'bad' },
  invalid: { word: 'Not valid', tone: 'warn' },
  stopped: { word: 'Stopped', tone: 'none' },
  failed: { word: 'Failed', tone: 'bad' },
  interrupted: { word: 'Interrupted', tone: 'warn' },
};

/** Formats an estimated duration of a run: `20 s`, `14 min`, `1 h 41 min`. */
export function estimate(seconds: number): string {
  const minutes = Math.round(seconds / 60);
  if (seconds < 7200 && minutes < 60) return duration(Math.round(seconds) * 1000);
  return minutes % 60 === 0 ? `${minutes / 60} h` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const date = (ms: number): string => new Date(ms).toLocaleString('en', { dateStyle: 'medium', timeStyle: 'medium' });

export const settings = (set: Run['set']): string => Object.entries(set).map(([key, value]) => `${key}=${value}`).join(', ');

/** Reads parameters from text: one `KEY=VALUE` per line. Throws an error that names a wrong line. */
export function parseSettings(text: string): Record<string, string> {
  const lines = text.split('\n').map((line) => line.trim()).filter((line) => line !== '');
  return Object.fromEntries(
    lines.map((line) => {
      const [, key, value] = /^([\w.-]+)\s*=\s*(.+)$/.exec(line) ?? [];
      if (key === undefined || value === undefined) throw new Error(`“${line}” is no parameter: write KEY=VALUE, for example clients=1,50`);
      return [key, value];
    }),
  );
}
