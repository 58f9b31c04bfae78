// The report's file, filled with the data of a recorded run.
import { readFileSync } from 'node:fs';

const PLACE = '<script type="application/json" id="analysis"></script>';
export const built = () => readFileSync(new URL('../single/report.html', import.meta.url), 'utf8');
export const recorded = (name: string) => readFileSync(new URL(`./fixtures/${name}.json`, import.meta.url), 'utf8').trim();

/** Inserts the data into the page in the same way as `crates/lab/src/report`. */
export function filled(json: string): string {
  const [before, after, ...more] = built().split(PLACE);
  if (before === undefined || after === undefined || more.length > 0) throw new Error('single/report.html has no one place for data: npm run build');
  return before + PLACE.replace('><', `>${json.replaceAll('<', '\\u003c')}<`) + after;
}
