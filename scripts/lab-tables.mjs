#!/usr/bin/env node
// Writes the tables of docs/lab from recordings: node scripts/lab-tables.mjs RESULTS
//
// RESULTS has one folder per scenario, as written by `scripts/lab-quick.sh BINARY RESULTS`. Tables of other scenarios
// stay unchanged. A table is in docs/lab/SCENARIO.md between `<!-- table: WHAT -->` and `<!-- /table -->`.
// WHAT is one of:
//   conditions                    the runs, the machine, and objections to the results
//   points [part=NAME] COLUMN..   one row per transport and load: metrics, factors (`bytes`), or PHASE.FIELD, such as
//                                 `idle.server_cpu_cores`
//   memory                        the fitted line of memory over connections
//   found NAME                    a table that the scenario itself has written
//   beside FILE COLUMN..          a table of a thesis beside ours, one row per row of RESULTS/SCENARIO/csv/FILE.csv
//                                 (`millrace lab export`); columns of the thesis come twice, others once
//   lines, published TEXT, slips, energy DAY, batteries, notes
//                                 tables of a bill: bytes, a thesis' table beside ours, joules
import { existsSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';

const DOCS = join(import.meta.dirname, '../docs/lab');
const TRANSPORTS = { websocket: 'WebSocket', session: 'session', sse: 'SSE', stream: 'HTTP streaming', ndjson: 'HTTP streaming', 'long-polling': 'long polling', polling: 'polling', 'data-channel': 'data channel' };
const THESES = join(import.meta.dirname, '../crates/lab/data');
const RADIOS = { lte: 'LTE', '3g': '3G', wifi: 'Wi-Fi' };

const PHASE_FIELDS = { server_cpu_cores: 'CPU', generator_cpu_cores: 'CPU of the generator', probe_p50_us: 'response time', server_memory_bytes: 'memory' };

const number = (value, digits = 3) => {
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString('en-US');
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString('en-US', { maximumFractionDigits: Math.min(decimals, 6) });
};
const scaled = (value, units) => {
  const [factor, name] = units.find(([factor]) => Math.abs(value) >= factor) ?? units.at(-1);
  return `${number(Number((value / factor).toPrecision(3)))} ${name}`;
};
const FORMATS = {
  us: (value) => scaled(value, [[1e6, 's'], [1e3, 'ms'], [1, 'us']]),
  bytes: (value) => scaled(value, [[1e9, 'GB'], [1e6, 'MB'], [1e3, 'kB'], [1, 'B']]),
  share: (value) => `${number(Number((value * 100).toPrecision(4)), 4)} %`,
  'per s': (value) => `${number(Number(value.toPrecision(4)), 4)}/s`,
  cores: (value) => `${number(Number(value.toPrecision(3)))} cores`,
  '': (value) => number(Number.isInteger(value) ? value : Number(value.toPrecision(3))),
};
const show = (value, unit) => (value == null ? '-' : (FORMATS[unit] ?? ((v) => `${FORMATS[''](v)} ${unit}`))(value));
const plain = (value) => (value == null ? '-' : typeof value === 'number' ? FORMATS[''](value) : (TRANSPORTS[value] ?? String(value)));
/** `websocket over TLS`: `SECURED` in crates/lab/src/wire/model.rs. */
const transportName = (name) => {
  const [plainName, secured = ''] = name.split(/(?= over TLS$)/);
  return (TRANSPORTS[plainName] ?? unknown(`transport ${name}`)) + secured;
};
/** Of the theses: as exact as they print. */
const exact = (value) => (value == null ? '-' : value.toLocaleString('en-US', { maximumFractionDigits: 2 }).replace(/^-0$/, '0'));

const table = (head, rows) => {
  if (rows.length === 0) throw new Error(`no rows for ${head.join(', ')}`);
  const broken = rows.find((row) => row.length !== head.length || row.some((cell) => cell == null || /undefined|NaN/.test(cell)));
  if (broken) throw new Error(`a row has no value: ${broken.join(' | ')}`);
  const line = (cells) => `| ${cells.map((cell) => String(cell).replaceAll('|', '\\|')).join(' | ')} |`;
  const numeric = head.map((_, i) => i > 0 && rows.every((row) => /^(-|[~+-]?[\d.,]+( \S+)?(\/s)?)$/.test(row[i])));
  return [line(head), `|${numeric.map((right) => (right ? '---:' : '---')).join('|')}|`, ...rows.map(line)].join('\n');
};
/** Breaks a text into lines of at most 120 characters, never inside code. */
const wrap = (text, indent = '') =>
  text.match(/(?:`[^`]*`|[^ `])+/g).reduce((lines, word) => {
    const line = `${lines.at(-1)} ${word}`;
    return lines.length > 0 && line.length <= 120 ? [...lines.slice(0, -1), line] : [...lines, lines.length > 0 ? indent + word : word];
  }, []).join('\n');
const list = (items) => items.map((item) => wrap(`- ${item}`, '  ')).join('\n');
const order = (transport) => Object.keys(TRANSPORTS).indexOf(transport);

function conditions({ head, points, bill }) {
  const { machine } = head;
  const command = head.command.replace(/ --out \S+/, '').replace(/^\S*millrace\S*/, 'millrace');
  const runs = head.runs_total > 0 ? `${head.runs_valid} of ${head.runs_total} runs valid` : head.is_valid ? 'valid' : 'invalid';
  const pinned = machine.cpu_pinning ? `; CPUs: ${machine.cpu_pinning}` : '';
  const build = /debug\)$/.test(machine.lab) ? ' A debug build, server included.' : '';
  const noise = head.gates.filter((gate) => gate.limit != null && gate.value > gate.limit);
  const against = noise.map((gate) => `${gate.label}: ${plain(gate.value)} ${gate.unit}, limit ${plain(gate.limit)}`);
  const effect = head.form === 'quick' ? 'The quick mode reports noise but accepts the runs.' : 'Noise makes a run invalid.';
  const shape = head.form === 'quick' && points.length ? ` **Shape, not figures**: the quick mode is short${points.some(({ runs }) => runs.length > 1) ? '' : ' and runs once'}.` : '';
  return [
    `\`${command}\`, ${head.started.slice(0, 10)}, ${runs}. Lab ${machine.lab}, Linux ${machine.kernel}, ${machine.cpu_model}, ` +
      `${machine.cores} cores${pinned}.${build}${shape}`,
    ...(bill ? [counted(bill)] : []),
    ...(against.length ? [`The machine was noisy (${against.join('; ')}). ${effect}`] : []),
  ].map((text) => wrap(text)).join('\n');
}

function counted({ path, lines }) {
  const off = Math.max(...lines.map((line) => Math.abs(line.difference_percent)));
  const check = path.captured_bytes == null ? 'not checked by a capture' : `capture: ${number(path.captured_bytes)} bytes, kernel: ${number(path.counted_bytes)}`;
  return `Over ${path.link}, MTU ${number(path.mtu)}, ${path.header_bytes} bytes of TCP and IP in each segment; ${check}; at most ${exact(off)} % off the model.`;
}

function points({ points, metrics }, words) {
  const part = words.find((word) => word.startsWith('part='))?.slice(5) ?? '';
  const columns = words.filter((word) => !word.startsWith('part='));
  const those = points.filter((point) => point.part === part);
  const axis = (those[0]?.load.counts ?? 'load').replaceAll('-', ' ');
  const targetsInOrder = [...new Set(those.map((point) => point.target))];
  const targets = targetsInOrder.length > 1;
  const of = (column, point) => {
    if (column in point.factors) return show(point.factors[column], '');
    if (column.includes('.')) {
      const [phase, field] = column.split('.');
      const unit = field.endsWith('_us') ? 'us' : field.endsWith('_cores') ? 'cores' : field.endsWith('_bytes') ? 'bytes' : '';
      return show(point.phases.find(({ name }) => name === phase)?.[field]?.median, unit);
    }
    const { unit } = metrics.find(({ metric }) => metric === column) ?? unknown(column);
    const figure = point.metrics[column];
    return (figure?.is_thin ? '~' : '') + show(figure?.median, unit);
  };
  const title = (column) => {
    const [phase, field] = column.includes('.') ? column.split('.') : ['', column];
    const label = PHASE_FIELDS[field] ?? metrics.find(({ metric }) => metric === field)?.label ?? field.replaceAll('_', ' ');
    return phase ? `${label}, ${phase}` : label;
  };
  const rank = ({ target, transport, load, factors }) => [targetsInOrder.indexOf(target), order(transport), load.value, factors.clients, factors.bytes];
  const sorted = those.toSorted((a, b) => rank(a).map((value, i) => value - rank(b)[i]).find((difference) => difference !== 0) ?? 0);
  return table(
    [...(targets ? ['server'] : []), 'transport', axis, ...columns.map(title)],
    sorted.map((point) => [
      ...(targets ? [point.target] : []), transportName(point.transport), show(point.load.value, ''), ...columns.map((column) => of(column, point)),
    ]),
  );
}

function memory({ curves }) {
  const lines = curves.filter((curve) => curve.memory);
  const range = ({ low, estimate, high }) => `${show(estimate, 'bytes')} (${show(low, 'bytes')} to ${show(high, 'bytes')})`;
  return table(
    ['transport', 'per connection, 95 % interval', 'server without connections', 'R²', 'largest residual'],
    lines.map(({ transport, memory: line }) => [
      transportName(transport), range(line.bytes_per_connection), show(line.base_bytes.estimate, 'bytes'), number(line.r_squared), show(line.residual_max, 'share'),
    ]),
  );
}

function found({ tables }, [name]) {
  const made = tables.find((one) => one.name === name) ?? unknown(name);
  const head = made.columns.map(({ name, unit }) => (unit ? `${name}, ${unit}` : name));
  return [table(head, made.rows.map((row) => row.map(plain))), ...(made.notes.length ? [list(made.notes)] : [])].join('\n\n');
}

/** Returns the rows of a CSV file (RFC 4180, without line breaks in fields), each by the names of its columns. */
function csv(path) {
  const cells = (line) => [...line.matchAll(/(?:^|,)(?:"((?:[^"]|"")*)"|([^,]*))/g)].map(([, quoted, bare]) => quoted?.replaceAll('""', '"') ?? bare);
  const [head, ...lines] = readFileSync(path, 'utf8').trim().split(/\r?\n/).map(cells);
  return lines.map((line) => Object.fromEntries(head.map((name, i) => [name, line[i] ?? ''])));
}

function beside(_, [file, ...columns], folder) {
  const theirs = csv(join(THESES, `${file}.csv`)), ours = csv(join(folder, 'csv', `${file}.csv`));
  const [key, ...named] = Object.keys(theirs[0]);
  const title = (name) => name.replace(/_(ms|bytes_per_s|events_per_s)$/, (_, unit) => `, ${unit.replaceAll('_', ' ').replace(' per ', '/')}`).replaceAll('_', ' ');
  const shown = (text) => (text === '' || text == null ? '-' : Number.isFinite(Number(text)) ? number(Number(Number(text).toPrecision(4)), 4) : (TRANSPORTS[text] ?? text));
  const is = (name) => (name in ours[0] ? named.includes(name) : unknown(`column ${name} of ${file}`));
  return table(
    [title(key), ...columns.flatMap((name) => (is(name) ? [`${title(name)}: thesis`, 'ours'] : [title(name)]))],
    ours.map((row) => {
      const their = theirs.find((one) => one[key] === row[key]) ?? {};
      return [shown(row[key]), ...columns.flatMap((name) => (is(name) ? [shown(their[name]), shown(row[name])] : [shown(row[name])]))];
    }),
  );
}

/** Of one connection that reads: bytes of IP packets by layer. The measurement counts the records of TLS as framing, the model apart. */
function lines({ bill }) {
  const layers = ['payload', 'framing', 'headers', 'acks'];
  const framed = ({ framing, tls }) => framing + tls;
  const one = (bytes, layer) => (layer === 'framing' ? framed(bytes) : bytes[layer]);
  const sum = (both, layer) => one(both.up, layer) + one(both.down, layer);
  return table(
    ['transport', 'unit', ...layers.map((layer) => ({ framing: 'framing and TLS', headers: 'TCP/IP', acks: 'ACKs' })[layer] ?? layer), 'total', 'upstream', 'model', 'deviation'],
    bill.lines.filter(({ side }) => side === 'deliver').map(({ transport, unit, measured, model, difference_percent: off }) => {
      const all = (both) => layers.reduce((total, layer) => total + sum(both, layer), 0);
      const up = layers.reduce((total, layer) => total + one(measured.up, layer), 0);
      return [transportName(transport), unit, ...layers.map((layer) => exact(sum(measured, layer))), exact(all(measured)), exact(up), exact(all(model)), `${exact(off)} %`];
    }),
  );
}

const publishedHead = ['item', 'unit', 'published', 'corrected', 'measured', ''];
const publishedRow = ({ item, unit, printed, corrected, ours, remark }) =>
  [TRANSPORTS[item] ?? item, unit, exact(printed), exact(corrected), exact(ours), remark];

function published({ bill }, words) {
  return table(publishedHead, bill.published.filter((row) => row.table.startsWith(words.join(' '))).map(publishedRow));
}

/** Printed figures that do not follow from their own parts, by more than rounding. */
function slips({ bill }) {
  const decimals = (value) => Math.min(2, String(value).split('.')[1]?.length ?? 0);
  const is = ({ printed, corrected }) =>
    printed != null && corrected != null && printed.toFixed(decimals(printed)) !== corrected.toFixed(decimals(printed));
  return table(
    ['thesis, table', 'item', 'unit', 'published', 'corrected', 'reason'],
    bill.published.filter(is).map((row) => [row.table, row.item, row.unit, exact(row.printed), exact(row.corrected), row.remark]),
  );
}

function energy({ bill }, words) {
  const day = bill.energy.filter((line) => line.day === words.join(' '));
  const radios = [...new Set(day.map(({ radio }) => radio))];
  const ways = [...new Map(day.map((line) => [`${line.transport} ${line.heartbeat_s}`, line])).values()];
  const of = (radio, way) => day.find((line) => line.radio === radio && line.transport === way.transport && line.heartbeat_s === way.heartbeat_s);
  return table(
    ['transport', 'heartbeat or poll', 'bytes a day', ...radios.map((radio) => `${RADIOS[radio] ?? radio}, J a day`)],
    ways.map((way) => [
      transportName(way.transport), `${number(way.heartbeat_s)} s`, show(way.bytes_per_day, 'bytes'),
      ...radios.map((radio) => number(Math.round(of(radio, way).joules_per_day))),
    ]),
  );
}

function batteries({ bill }) {
  const rows = bill.batteries.map(({ what, capacity_wh, power_w, hours, published_hours, remark }) =>
    [what, `${number(capacity_wh)} Wh`, `${number(power_w)} W`, `${number(Number(hours.toFixed(2)))} h`, published_hours ? `${published_hours} h` : '-', remark]);
  return table(['item', 'battery', 'power', 'lasts', 'published', ''], rows);
}

const notes = ({ bill }) => list(bill.notes);

const KINDS = { conditions, points, memory, found, beside, lines, published, slips, energy, batteries, notes };

function unknown(what) {
  throw new Error(`unknown ${what}`);
}

const [results] = process.argv.slice(2);
if (!results) {
  console.error('usage: node scripts/lab-tables.mjs RESULTS (a folder with one folder per scenario)');
  process.exit(3);
}
for (const file of readdirSync(DOCS).filter((name) => name.endsWith('.md') && name !== 'README.md')) {
  const [page, scenario] = [join(DOCS, file), basename(file, '.md')];
  const path = join(results, scenario, 'analysis.json');
  if (!existsSync(path)) {
    console.error(`${scenario}: not in ${results}; its tables stay unchanged`);
    continue;
  }
  const analysis = JSON.parse(readFileSync(path, 'utf8'));
  let count = 0;
  const text = readFileSync(page, 'utf8').replaceAll(/(<!-- table: (.+?) -->\n)[^]*?(<!-- \/table -->)/g, (_, start, what, end) => {
    const [kind, ...words] = what.split(' ');
    count += 1;
    try {
      return `${start}\n${(KINDS[kind] ?? unknown(kind))(analysis, words, join(results, scenario))}\n\n${end}`;
    } catch (error) {
      throw new Error(`${file}: ${what}: ${error.message}`, { cause: error });
    }
  });
  writeFileSync(page, text);
  console.log(`${scenario}: ${count} tables`);
}
