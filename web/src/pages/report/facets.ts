/**
 * Lines of a report for drawing, grouped by part of the scenario, and by transport if one chart would have too many
 * lines.
 */
import type { Axis } from '../../lib/chart/axis';
import { decades } from '../../lib/chart/axis';
import type { Drawn, Point as DrawnPoint } from '../../lib/chart/LineChart.svelte';
import { plain } from '../../lib/chart/units';
import type { Analysis, Curve, Figure, Load, Point } from './analysis';
import { loadUnit, targetName, transportName, type LineStyles } from './names';

/** Maximum number of readable lines in one chart. */
const LINES_MAX = 7;

export interface Line {
  readonly curve: Curve;
  readonly points: readonly Point[];
  readonly name: string;
  readonly style: ReturnType<LineStyles['of']>;
}

export interface Facet {
  /** Empty if there is only one facet. */
  readonly title: string;
  readonly counts: Load['counts'];
  readonly lines: readonly Line[];
}

/** Returns all lines in the order of the styles. */
function linesOf(analysis: Analysis, styles: LineStyles): Line[] {
  const lines: Line[] = analysis.curves.map((curve) => ({
    curve,
    points: curve.points.flatMap((index) => analysis.points[index] ?? []),
    name: styles.of(curve).name,
    style: styles.of(curve),
  }));
  return lines.sort((a, b) => styles.place(a.curve) - styles.place(b.curve));
}

/** Returns the lines for one chart. If there are too many, only those of the first server. */
export function linesForOneChart(analysis: Analysis, styles: LineStyles): Line[] {
  const lines = linesOf(analysis, styles).filter((line) => line.points.length > 0);
  return lines.length <= LINES_MAX ? lines : lines.filter((line) => line.curve.target === lines[0]?.curve.target);
}

export function facets(analysis: Analysis, styles: LineStyles): Facet[] {
  const lines = linesOf(analysis, styles);
  const parts = [...new Set(lines.map((line) => line.curve.part))];
  return parts.flatMap((part) => {
    const of = lines.filter((line) => line.curve.part === part && line.points.length > 0);
    const counts = of[0]?.points[0]?.load.counts ?? 'clients';
    const transports = [...new Set(of.map((line) => line.curve.transport))];
    if (of.length <= LINES_MAX || transports.length === 1) return of.length > 0 ? [{ title: part, counts, lines: of }] : [];
    return transports.map((transport) => ({
      title: [part, transportName(transport)].filter(Boolean).join(', '),
      counts,
      lines: of.filter((line) => line.curve.transport === transport).map((line) => ({ ...line, name: targetName(line.curve.target) })),
    }));
  });
}

/** Returns the line of a figure over the load. */
export function drawn(line: Line, of: (point: Point) => Figure | null | undefined, knee = false): Drawn {
  const { knee: bend } = line.curve;
  return {
    name: line.name,
    ink: line.style.ink,
    points: line.points.map((point): DrawnPoint => {
      const figure = of(point);
      const note = [point.is_invalid ? 'No valid run' : '', figure?.is_thin ? 'From fewer than 10 samples' : ''].filter(Boolean).join('. ');
      return { x: point.load.value, y: figure?.median ?? null, low: figure?.ci95?.[0] ?? null, high: figure?.ci95?.[1] ?? null, ...(note ? { note } : {}) };
    }),
    ...(knee && bend ? { knee: { x: bend.saturated, description: `${line.name}: saturated at ${plain(bend.saturated)}`, short: `saturated at ${plain(bend.saturated)}` } } : {}),
  };
}

/** Returns the axis of loads, logarithmic if the loads span more than two decades. */
export function loadAxis(counts: Load['counts'], loads: readonly number[]): Axis {
  const [low, high] = [Math.min(...loads), Math.max(...loads)];
  const label = loadUnit(counts);
  if (low > 0 && high / low > 100 && loads.length > 3 && !(low === 1 && high <= 1000)) return { kind: 'log', domain: [decades(loads)[0], high], label, format: plain };
  return { kind: 'linear', domain: [0, Math.max(1, high)], label, format: plain };
}

export const loadsOf = (facet: Facet): number[] => facet.lines.flatMap((line) => line.points.map((point) => point.load.value));

/** Returns the highest load that was sustained, and the load nearest to half of it. */
export function sustained(line: Line): { readonly top: Point; readonly half: Point; readonly all: boolean } | undefined {
  const { knee } = line.curve;
  const fit = line.points.filter((point) => !knee || (knee.carried !== null && point.load.value <= knee.carried));
  const top = fit.at(-1) ?? line.points[0];
  if (!top) return undefined;
  const off = (point: Point) => Math.abs(point.load.value - top.load.value / 2);
  const half = line.points.reduce((best, point) => (off(point) < off(best) ? point : best), top);
  return { top, half, all: !knee };
}

/** Returns the medians and the bounds of their intervals, which the axis must include. */
export const valuesWithBounds = (points: readonly Point[], of: (point: Point) => Figure | null | undefined): number[] =>
  points.flatMap((point) => {
    const figure = of(point);
    return figure ? [figure.median, ...(figure.ci95 ?? [])] : [];
  });
