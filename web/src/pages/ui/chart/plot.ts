// One uPlot chart over samples: lines or a stack, a time axis that moves, marks of events.
import uPlot from 'uplot';
import { plain, time, type Format } from '../units';
import { colorOf, faded } from './colors';
import type { Samples } from './samples';

export interface Line {
  readonly column: string;
  readonly label: string;
  /** Name of a custom property. */
  readonly color: string;
}

export interface Mark {
  readonly timeMs: number;
}

export interface PlotOptions {
  readonly lines: readonly Line[];
  readonly stacked: boolean;
  readonly format: Format;
  readonly width: number;
  readonly height: number;
  marks(): readonly Mark[];
  /** Called with the index of the sample below the cursor. */
  onCursor(index: number | null): void;
}

/** All charts with this key move their cursors together. */
const SYNC = 'ui';
const STEPS = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];
/** Distances of the values at the axis: with a step of 0.25, rounded values would look uneven. */
const AXIS_STEPS = Array.from({ length: 18 }, (_, power) => [1, 2, 5].map((step) => Number(`${step}e${power - 3}`))).flat();
/** The same for counts, which have no fractions. */
const WHOLE_STEPS = AXIS_STEPS.filter((step) => step >= 1);

/** Returns a round number at or above `value`. */
export function roundTop(value: number): number {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return STEPS.find((step) => step * power >= value * 1.02)! * power;
}

/** Returns the data of uPlot: times, then a column for each line. A stack adds up the lines, the last one first. */
export function dataOf(samples: Samples, lines: readonly Line[], stacked: boolean): uPlot.AlignedData {
  const times = Array.from({ length: samples.length }, (_, i) => samples.time(i));
  const columns = lines.map(({ column }) => times.map((_, i) => samples.value(column, i) ?? null));
  if (stacked)
    for (let line = 1; line < columns.length; line++)
      columns[line] = columns[line]!.map((value, i) => {
        const below = columns[line - 1]![i] ?? null;
        return value === null && below === null ? null : (value ?? 0) + (below ?? 0);
      });
  return [times, ...(stacked ? columns.reverse() : columns)];
}

export function plot(target: HTMLElement, samples: Samples, options: PlotOptions): uPlot {
  const { lines, stacked, format, width, height } = options;
  const ink = colorOf(target, '--ink-2');
  const grid = { stroke: colorOf(target, '--grid'), width: 1 };
  const font = `11px ${getComputedStyle(target).fontFamily}`;
  const accent = colorOf(target, '--line-strong');
  const drawMarks = (u: uPlot): void => {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = accent;
    ctx.lineWidth = devicePixelRatio;
    for (const { timeMs } of options.marks()) {
      const x = Math.round(u.valToPos(timeMs / 1000, 'x', true)) + 0.5;
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const size = 4 * devicePixelRatio;
      ctx.beginPath();
      ctx.moveTo(x - size, bbox.top);
      ctx.lineTo(x + size, bbox.top);
      ctx.lineTo(x, bbox.top + size);
      ctx.fill();
    }
    ctx.restore();
  };
  return new uPlot(
    {
      width,
      height,
      padding: [6, 10, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: SYNC, setSeries: false }, drag: { x: false, y: false }, y: false, points: { size: 6 } },
      scales: { x: { time: true, auto: false }, y: { range: (_, __, max) => [0, roundTop(max)] } },
      axes: [
        { stroke: ink, font, grid: { show: false }, ticks: { show: false }, size: 22, gap: 4, space: 80, incrs: [5, 10, 15, 30, 60, 120, 180, 300], values: (_, splits) => splits.map((split) => time(split * 1000)) },
        { stroke: ink, font, grid, ticks: { show: false }, size: 62, gap: 6, space: 34, incrs: format === plain ? WHOLE_STEPS : AXIS_STEPS, values: (_, splits) => splits.map(format) },
      ],
      series: [
        {},
        // Lines are drawn one over the other. Where several lie at the same height, the lowest part of a stack shows.
        ...(stacked ? lines.toReversed() : lines).map(({ label, color }) => {
          const stroke = colorOf(target, color);
          return { label, stroke, width: 1.5, points: { show: false }, ...(stacked ? { fill: faded(stroke, 0.22) } : lines.length === 1 ? { fill: faded(stroke, 0.1) } : {}) };
        }),
      ],
      ...(stacked && { bands: lines.slice(1).map((_, i) => ({ series: [i + 1, i + 2] as [number, number] })) }),
      hooks: { draw: [drawMarks], setCursor: [(u) => options.onCursor(u.cursor.idx ?? null)] },
    },
    dataOf(samples, lines, stacked),
    target,
  );
}
