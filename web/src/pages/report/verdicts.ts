import { change } from '../../lib/chart/units';
import type { Comparison, Verdict } from './analysis';

/** Words for a verdict, over time (`word`) and between servers (`rival`). */
export const VERDICTS: Readonly<Record<Verdict, { readonly word: string; readonly rival: string; readonly tone: 'good' | 'bad' | 'none' }>> = {
  improved: { word: 'Improved', rival: 'Better', tone: 'good' },
  regressed: { word: 'Regressed', rival: 'Worse', tone: 'bad' },
  'within-noise': { word: 'Within noise', rival: 'Within noise', tone: 'none' },
  'too-few-runs': { word: 'Too few runs', rival: 'Too few runs', tone: 'none' },
  'no-ratio': { word: 'No ratio', rival: 'No ratio', tone: 'none' },
};

/** Formats a ratio as `+9.7 % [+6.2 %, +13 %]`. */
export const ratio = ({ ratio }: Comparison): string =>
  ratio ? `${change(ratio.estimate - 1)} [${change(ratio.low - 1)}, ${change(ratio.high - 1)}]` : '–';
