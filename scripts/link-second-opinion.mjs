#!/usr/bin/env node
// Checks emulated links with programs that are not part of this project: iperf3 sends and counts, dumpcap captures at
// both ends of the link, and the delay of a datagram is the difference of its two times. Needs root, and the Debian
// packages iperf3 and tshark. Takes about two minutes:
//
//   scripts/link-second-opinion.mjs target/release/millrace
//   RATTAN=rattan scripts/link-second-opinion.mjs target/release/millrace    # the same through another emulator
//
// The exit code is 1 if a figure of our link is off.
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const PORT = 5299;
const BYTES = 200;
// Headers of IPv4 and UDP, which a link counts.
const HEADERS = 28;
const CASES = [
  { name: 'delay 24 ms', delay: 24, load: ['-u', '-b', rate(500), '-l', BYTES, '-t', 10] },
  { name: 'loss 5 %', delay: 5, loss: 0.05, load: ['-u', '-b', rate(5000), '-l', BYTES, '-t', 20] },
  { name: 'rate 10 Mbit/s, UDP', delay: 5, megabits: 10, load: ['-u', '-b', '20M', '-l', 1200, '-t', 10] },
  { name: 'rate 10 Mbit/s, TCP', delay: 5, megabits: 10, load: ['-C', 'cubic', '-t', 10, '-O', 2] },
];

/** Payload bits per second of this many datagrams per second. */
function rate(perSecond) {
  return perSecond * BYTES * 8;
}

const [first, ...rest] = process.argv.slice(2);
if (first === undefined) {
  console.error('usage: link-second-opinion.mjs MILLRACE');
  process.exit(2);
}
if (first === '--inside') await inside(...rest);
else process.exit(await outside(first));

/** Runs behind the link: captures what leaves, and sends. */
async function inside(folder, loadText) {
  const host = process.env.LINK_HOST ?? process.env.RATTAN_EXT ?? process.env.RATTAN_BASE;
  const capture = await startCapture(join(folder, 'near.pcapng'));
  try {
    const output = execFileSync('iperf3', ['-c', host, '-p', PORT, '--json', ...JSON.parse(loadText)], { maxBuffer: 64e6 });
    process.stdout.write(`RESULT ${JSON.stringify(JSON.parse(output).end)}\n`);
  } finally {
    await stop(capture);
  }
}

async function outside(millrace) {
  const rattan = process.env.RATTAN;
  let off = 0;
  console.log(`${'emulator'.padEnd(10)}${'link'.padEnd(22)}${'figure'.padEnd(34)}${'set'.padStart(10)}${'measured'.padStart(12)}  verdict`);
  for (const test of CASES) {
    for (const [name, command] of [['millrace', ours(millrace, test)], ...(rattan ? [['rattan', theirs(rattan, test)]] : [])]) {
      for (const { figure, set, measured, allowed } of await run(command, test, name === 'millrace')) {
        const isOff = !(Math.abs(measured - set) <= allowed);
        if (isOff && name === 'millrace') off += 1;
        const verdict = isOff ? `off by more than ${allowed}` : `within ${allowed.toPrecision(2)}`;
        console.log(`${name.padEnd(10)}${test.name.padEnd(22)}${figure.padEnd(34)}${set.toFixed(3).padStart(10)}${measured.toFixed(3).padStart(12)}  ${verdict}`);
      }
    }
  }
  return off > 0 ? 1 : 0;
}

function ours(millrace, { delay, loss = 0, megabits }) {
  const set = [`up.delay=${delay}ms`, `down.delay=${delay}ms`, `up.loss=${loss * 100}%`, ...(megabits ? [`up.rate=${megabits}Mbit/s`, 'up.queue=100 packets'] : [])];
  return [millrace, 'lab', 'link', 'run', ...set.flatMap((setting) => ['--set', setting]), '--'];
}

function theirs(rattan, { delay, loss = 0, megabits }) {
  const set = ['--uplink-delay', `${delay}ms`, '--downlink-delay', `${delay}ms`];
  if (loss) set.push('--uplink-loss', loss);
  if (megabits) set.push('--uplink-bandwidth', `${megabits}Mbps`, '--uplink-queue', 'droptail', '--uplink-queue-args', '{"packet_limit":100}');
  return [rattan, 'link', ...set, '--'];
}

/**
 * Runs one load, and returns the figures. `isLocal`: packets arrive at 127.0.0.1, as from every `link run`; a server of
 * UDP that connects its socket must listen on this address.
 */
async function run(command, test, isLocal) {
  const folder = mkdtempSync(join(tmpdir(), 'link-'));
  const server = spawn('iperf3', ['-s', '-1', '-p', PORT, ...(isLocal ? ['-B', '127.0.0.1'] : [])], { stdio: ['ignore', 'ignore', 'inherit'] });
  const capture = await startCapture(join(folder, 'far.pcapng'));
  try {
    const [program, ...args] = [...command, process.execPath, process.argv[1], '--inside', folder, JSON.stringify(test.load.map(String))];
    const link = spawn(program, args.map(String), { stdio: ['ignore', 'pipe', 'pipe'] });
    const [output, errors, code] = await Promise.all([text(link), text(link, 'stderr'), ended(link)]);
    const line = output.split('\n').find((line) => line.startsWith('RESULT '));
    if (code !== 0 || line === undefined) throw new Error(`${program} failed with code ${code}: ${errors || output}`);
    await stop(capture);
    const near = times(join(folder, 'near.pcapng')), far = times(join(folder, 'far.pcapng'));
    return figures(test, JSON.parse(line.slice(7)), near, far);
  } finally {
    server.kill();
    await stop(capture);
    rmSync(folder, { recursive: true });
  }
}

function figures({ delay, loss, megabits, load }, sent, near, far) {
  if (!load.includes('-u')) {
    // A full segment has 1448 bytes of payload of 1500.
    return [{ figure: 'received, Mbit/s with headers', set: megabits, measured: (sent.sum_received.bits_per_second / 1e6) * (1500 / 1448), allowed: megabits * 0.03 }];
  }
  const count = near.size;
  const arrived = [...near.keys()].filter((number) => far.has(number));
  if (megabits) {
    const bytes = (load[load.indexOf('-l') + 1] + HEADERS) * 8;
    const ends = arrived.map((number) => far.get(number)).sort((a, b) => a - b);
    return [{ figure: 'received in the capture, Mbit/s', set: megabits, measured: ((ends.length - 1) * bytes) / (ends.at(-1) - ends[0]) / 1e6, allowed: megabits * 0.01 }];
  }
  if (loss) {
    // Three standard deviations of a binomial share, in percent.
    const allowed = 300 * Math.sqrt((loss * (1 - loss)) / count);
    const { lost_packets: lost, packets } = sent.sum;
    return [
      { figure: `lost in captures of ${count}, %`, set: loss * 100, measured: 100 * (1 - arrived.length / count), allowed },
      { figure: `lost, by iperf3 of ${packets}, %`, set: loss * 100, measured: (100 * lost) / packets, allowed },
    ];
  }
  const delays = arrived.map((number) => (far.get(number) - near.get(number)) * 1000).sort((a, b) => a - b);
  const at = (share) => delays[Math.floor((delays.length - 1) * share)];
  return [
    { figure: `one-way delay p50 of ${delays.length}, ms`, set: delay, measured: at(0.5), allowed: 0.5 },
    { figure: 'one-way delay p90, ms', set: delay, measured: at(0.9), allowed: 0.5 },
  ];
}

async function startCapture(file) {
  const capture = spawn('dumpcap', ['-q', '-i', 'any', '-s', '100', '-f', `udp dst port ${PORT}`, '-w', file], { stdio: ['ignore', 'ignore', 'pipe'] });
  await new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error('dumpcap did not start within 10 s')), 10_000);
    capture.stderr.on('data', (data) => {
      if (String(data).includes('File:')) {
        clearTimeout(timer);
        resolve();
      }
    });
    capture.on('exit', (code) => reject(new Error(`dumpcap ended with code ${code}`)));
  });
  return capture;
}

async function stop(child) {
  if (child.exitCode !== null || child.signalCode !== null) return;
  // The last packets may still be in the buffer of the kernel.
  await new Promise((resolve) => setTimeout(resolve, 500));
  child.kill('SIGINT');
  await ended(child);
}

function ended(child) {
  return new Promise((resolve) => (child.exitCode !== null ? resolve(child.exitCode) : child.on('close', resolve)));
}

async function text(child, stream = 'stdout') {
  let all = '';
  for await (const part of child[stream]) all += part;
  return all;
}

/** Returns the time in seconds of each datagram. iperf3 writes the number of a datagram after its time (8 bytes). */
function times(file) {
  const output = file.endsWith('.pcapng') && readFileSync(file).length > 0 ? execFileSync('tshark', ['-r', file, '-T', 'fields', '-e', 'frame.time_epoch', '-e', 'udp.payload'], { maxBuffer: 1e9, stdio: ['ignore', 'pipe', 'ignore'] }) : '';
  const seen = new Map();
  for (const line of String(output).split('\n')) {
    const [time, payload = ''] = line.split('\t');
    if (payload.length < 24) continue;
    const number = Number.parseInt(payload.slice(16, 24), 16);
    // A datagram passes more than one device of this machine: the first time counts.
    if (number > 0 && number < 0x7fffffff && !seen.has(number)) seen.set(number, Number(time));
  }
  return seen;
}
