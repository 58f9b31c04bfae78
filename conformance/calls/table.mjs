// Makes the tables of docs/reference/interoperability.md from results.json of a run:
//
//   table.mjs RESULTS.json [DOCUMENT]    prints the tables, or writes them into the document
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const BEGIN = '<!-- begin: made by conformance/calls/table.mjs -->';
const END = '<!-- end -->';
const NAMES = { chromium: 'Chromium', firefox: 'Firefox', aiortc: 'aiortc', pion: 'Pion' };
/** A sender adapts if it sends at most this factor of the bottleneck; otherwise the cable drops its packets. */
const TOLERANCE = 1.1;
const FEEDBACK = ['TWCC', 'CCFB', 'REMB', 'NACK', 'PLI', 'FIR', 'XR'];

const row = (cells) => `| ${cells.join(' | ')} |`;
const table = (head, rows) => [row(head), row(head.map(() => '---')), ...rows.map(row)].join('\n');
const counts = (kinds) => ['SR', 'RR', ...FEEDBACK].flatMap((kind) => (kinds[kind] ? [`${kind} ${kinds[kind]}`] : [])).join(', ');

const calls = (results) =>
  table(
    ['peer', 'path', 'candidates', 'both videos move after', 'frames received by the peer, by Chromium', 'result'],
    results.map(({ peer, path, failure, moving_s, chromium, tested }) => [
      NAMES[peer],
      path,
      tested?.route ?? '-',
      moving_s ? `${moving_s.toFixed(1)} s` : '-',
      tested ? `${tested.frames}, ${chromium.frames}` : '-',
      failure ? `failed: ${failure}` : 'passed',
    ]),
  );

const rtcp = (results) =>
  table(
    ['peer', 'path', 'RTCP sent by the peer', 'RTCP received by the peer'],
    results.flatMap(({ peer, path, tested }) => (tested ? [[NAMES[peer], path, counts(tested.rtcp_sent), counts(tested.rtcp_received)]] : [])),
  );

/** Feedback on the rate that a sender received: transport-wide, or an estimate of the receiver. */
const feedback = (kinds) => ['TWCC', 'CCFB', 'REMB'].filter((kind) => kinds[kind]).join(', ') || 'none';

function adapts(rates, direction, kbps) {
  const [before, during] = [rates.before[direction], rates.during[direction]];
  if (before.kbps <= kbps * TOLERANCE) return 'not known';
  return during.kbps <= kbps * TOLERANCE ? 'yes' : 'no';
}

function senders(results, kbps) {
  const rows = results.flatMap(({ peer, path, rates, tested }) => {
    if (!rates) return [];
    const other = path === 'unit' ? 'the SFU' : 'Chromium';
    return [
      ['up', NAMES[peer], other, feedback(tested.rtcp_received)],
      ['down', other, NAMES[peer], feedback(tested.rtcp_sent)],
    ].map(([direction, from, to, kinds]) => {
      const phases = Object.values(rates).map((phase) => phase[direction]);
      return [from, to, path, kinds, ...phases.map(({ kbps }) => kbps), `${(phases[1].lost * 100).toFixed(1)} %`, adapts(rates, direction, kbps)];
    });
  });
  return table(['sender', 'receiver', 'path', 'feedback', 'before', 'during', 'after', 'dropped during', 'adapts'], rows);
}

export function tables(results, kbps) {
  return `### Calls\n\n${calls(results)}\n\n### Who adapts to ${kbps} kbit/s\n\n${senders(results, kbps)}\n\n### RTCP\n\n${rtcp(results)}\n`;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [file, document] = process.argv.slice(2);
  const text = tables(JSON.parse(readFileSync(file, 'utf8')), 300);
  if (!document) console.log(text);
  else {
    const whole = readFileSync(document, 'utf8');
    const [before, rest] = whole.split(BEGIN);
    const [, after] = (rest ?? '').split(END);
    if (after === undefined) throw new Error(`${document} has no lines "${BEGIN}" and "${END}"`);
    writeFileSync(document, `${before}${BEGIN}\n\n${text}\n${END}${after}`);
  }
}
