/**
 * Automatic calls: `/rooms/{room}?call=auto&n=NAME_ITERATION&relay=1&for=300s`. The page joins without a question, and
 * uploads its statistics under the name of the run. Source: docs/reference/rooms.md, "Automatic calls".
 */
import type { Topology } from '@millrace/client/room';
import { TOPOLOGIES } from './view';

export interface AutoCall {
  /** Name of the run, with the number of its iteration at the end. */
  readonly run: string;
  /** Whether all traffic goes through the TURN relay. */
  readonly relay: boolean;
  readonly forMs: number;
  readonly topology: Topology;
}

const RUN_MAX = 64;
const FOR_DEFAULT_MS = 300_000;
const FOR_MAX_MS = 6 * 3_600_000;
const UNITS: Readonly<Record<string, number>> = { s: 1_000, m: 60_000, min: 60_000, h: 3_600_000 };

/** A file name, a channel level and a cell of a table: nothing else can hide in it. */
export const isRunName = (name: string): boolean => name.length <= RUN_MAX && /^[A-Za-z0-9][A-Za-z0-9.-]*_[0-9]{1,6}$/.test(name) && !name.includes('..');

/** Shows a value from the address in a message. The value may have any length. */
const shown = (value: string): string => `“${value.length > 48 ? `${value.slice(0, 48)}… (${value.length} characters)` : value}”`;

/** Parses a query. Returns undefined without `call`, and the reasons if the query is not valid. */
export function parseAutoCall(query: string): AutoCall | { readonly wrong: readonly string[] } | undefined {
  const parameters = new URLSearchParams(query);
  const call = parameters.get('call');
  if (call === null) return undefined;
  const wrong: string[] = [];
  if (call !== 'auto') wrong.push(`call=${shown(call)}: the only value is “auto”.`);
  const run = parameters.get('n') ?? '';
  if (!isRunName(run)) wrong.push(`n=${shown(run)}: expected NAME_ITERATION, for example “free_3”: letters, digits, “-” and “.”, then “_” and a number, at most ${RUN_MAX} characters.`);
  const relay = parameters.get('relay') ?? '0';
  if (!['0', '1'].includes(relay)) wrong.push(`relay=${shown(relay)}: expected 1 (only through the relay) or 0.`);
  const duration = parameters.get('for');
  const [, count, unit] = /^(\d{1,6})(s|m|min|h)$/.exec(duration ?? '') ?? [];
  const forMs = duration === null ? FOR_DEFAULT_MS : Number(count) * (UNITS[unit ?? ''] ?? NaN);
  if (!(forMs > 0 && forMs <= FOR_MAX_MS)) wrong.push(`for=${shown(duration ?? '')}: expected a duration from “1s” to “6h”, for example “300s”.`);
  const topology = parameters.get('topology') ?? 'p2p';
  if (!TOPOLOGIES.some(({ name }) => name === topology)) wrong.push(`topology=${shown(topology)}: expected one of ${TOPOLOGIES.map(({ name }) => name).join(', ')}.`);
  return wrong.length ? { wrong } : { run, relay: relay === '1', forMs, topology: topology as Topology };
}
