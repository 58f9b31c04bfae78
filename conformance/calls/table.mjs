// Makes the tables of docs/reference/interoperability.md from results.json of runs:
//
//   table.mjs RESULTS.json ..                                 prints the tables
//   table.mjs --write DOCUMENT RECORD.json RESULTS.json ..    updates the record, and the document from the record
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const BEGIN = '<!-- begin: made by conformance/calls/table.mjs -->';
const END = '<!-- end -->';
const NAMES = { chromium: 'Chromium', firefox: 'Firefox', aiortc: 'aiortc', pion: 'Pion' };
/**
 * A sender adapts if it sends at most this factor of the bottleneck; otherwise the cable drops its packets. It reduces
 * its rate if it sends at most `REDUCED` of what it sent before.
 */
const TOLERANCE = 1.1;
const REDUCED = 0.7;
const PATHS = { mesh: 'mesh', relay: 'relay', unit: 'SFU' };
const FEEDBACK = ['TWCC', 'CCFB', 'REMB', 'NACK', 'PLI', 'FIR', 'XR'];

const row = (cells) => `| ${cells.join(' | ')} |`;
const table = (head, rows) => [row(head), row(head.map(() => '---')), ...rows.map(row)].join('\n');
const counts = (kinds) => ['SR', 'RR', ...FEEDBACK].flatMap((kind) => (kinds[kind] ? [`${kind} ${kinds[kind]}`] : [])).join(', ');

const calls = (results) =>
  table(
    ['peer', 'path', 'candidates', 'both videos move after', 'frames received by the peer, by Chromium', 'CPU idle', 'result'],
    results.map(({ peer, path, failure, moving_s, idle, chromium, tested }) => [
      NAMES[peer],
      PATHS[path],
      tested?.route ?? '-',
      moving_s ? `${moving_s.toFixed(1)} s` : '-',
      tested ? `${tested.frames}, ${chromium.frames}` : '-',
      idle === undefined ? '-' : `${Math.round(idle * 100)} %`,
      failure ? `failed: ${failure}` : 'passed',
    ]),
  );

const rtcp = (results) =>
  table(
    ['peer', 'path', 'RTCP sent by the peer', 'RTCP received by the peer'],
    results.flatMap(({ peer, path, tested }) => (tested ? [[NAMES[peer], PATHS[path], counts(tested.rtcp_sent), counts(tested.rtcp_received)]] : [])),
  );

/** Feedback on the rate that a sender received: transport-wide, or an estimate of the receiver. */
const feedback = (kinds) => ['TWCC', 'CCFB', 'REMB'].filter((kind) => kinds[kind]).join(', ') || 'none';

function adapts(rates, direction, kbps) {
  const [before, during] = [rates.before[direction], rates.during[direction]];
  if (before.kbps <= kbps * TOLERANCE) return 'not known';
  if (during.kbps <= kbps * TOLERANCE) return 'yes';
  return during.kbps <= before.kbps * REDUCED ? 'not enough' : 'no';
}

function senders(results, kbps) {
  const rows = results.flatMap(({ peer, path, rates, tested }) => {
    if (!rates) return [];
    const title = peer === 'chromium' ? 'Chromium behind the cable' : NAMES[peer];
    const other = path === 'unit' ? 'the SFU' : 'Chromium';
    return [
      ['up', title, other, feedback(tested.rtcp_received)],
      ['down', other, title, feedback(tested.rtcp_sent)],
    ].map(([direction, from, to, kinds]) => {
      const phases = Object.values(rates).map((phase) => phase[direction]);
      return [from, to, PATHS[path], kinds, ...phases.map(({ kbps }) => kbps), `${(phases[1].lost * 100).toFixed(1)} %`, adapts(rates, direction, kbps)];
    });
  });
  return table(['sender', 'receiver', 'path', 'feedback', 'before', 'during', 'after', 'dropped during', 'adapts'], rows);
}

export function tables(results, kbps) {
  const versions = Object.entries(NAMES).flatMap(([name, title]) => {
    const found = results.find(({ peer, tested }) => peer === name && tested?.version);
    return found ? [`${title} ${found.tested.version}`] : [];
  });
  const sections = [`Versions: ${versions.join(', ')}.`, '## Calls', calls(results)];
  if (results.some(({ rates }) => rates)) sections.push(`## Who adapts to ${kbps} kbit/s`, senders(results, kbps));
  return `${[...sections, '## RTCP', rtcp(results)].join('\n\n')}\n\n`;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const document = process.argv[2] === '--write' ? process.argv[3] : undefined;
  const files = process.argv.slice(document ? 4 : 2);
  const results = new Map();
  for (const file of files) for (const result of JSON.parse(readFileSync(file, 'utf8'))) results.set(`${result.peer}-${result.path}`, result);
  const order = (names, name) => Object.keys(names).indexOf(name);
  const sorted = [...results.values()].sort((a, b) => order(NAMES, a.peer) - order(NAMES, b.peer) || order(PATHS, a.path) - order(PATHS, b.path));
  const text = tables(sorted, 300);
  if (!document) console.log(text);
  else {
    const [before, rest] = readFileSync(document, 'utf8').split(BEGIN);
    const [, after] = (rest ?? '').split(END);
    if (after === undefined) throw new Error(`${document} has no lines "${BEGIN}" and "${END}"`);
    writeFileSync(document, `${before}${BEGIN}\n\n${text}${END}${after}`);
    writeFileSync(files[0], `${JSON.stringify(sorted, undefined, 1)}\n`);
  }
}
