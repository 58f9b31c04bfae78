// Calls between Chromium and each peer, over each path, in a network namespace of their own. run.sh installs the peers
// and starts this.
//
//   run.mjs BINARY FOLDER [--quick] [PEER-PATH ..]
//
// FOLDER has the installed peers and receives logs. The last lines of the output are the tables and the verdict.
import { spawn } from 'node:child_process';
import { createWriteStream, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { HOST, openNetwork } from './network.mjs';
import { tables } from './table.mjs';

const [binary, folder, ...options] = process.argv.slice(2);
const quick = options.includes('--quick');
const chosen = options.filter((option) => !option.startsWith('--'));
const here = fileURLToPath(new URL('.', import.meta.url));
const work = process.env.WORK ?? folder;

const BOTTLENECK_KBPS = 300;
/** Seconds of each phase; its last seconds are measured. */
const PHASES = { before: { for_s: 20, measured_s: 8 }, during: { for_s: 30, measured_s: 10 }, after: { for_s: 30, measured_s: 8 } };
const CONNECT_MAX_S = 60;
/** Frames that each side must receive, and readings that must differ from the reading before. */
const FRAMES_MIN = 30;
/** Frames that each side must still receive while the cable is measured after the bottleneck. */
const FRAMES_AFTER_MIN = 5;
const CHANGES_MIN = 2;

/** Command of each peer, which gets the URL of the server, the room and its topology. */
const node = (name, logs) => (...call) => ['node', join(here, 'peers/browser.mjs'), name, ...call, logs];
const PEERS = {
  chromium: (logs) => node('chromium', logs),
  firefox: (logs) => node('firefox', logs),
  aiortc: () => (...call) => [join(folder, 'venv/bin/python'), join(here, 'peers/aiortc_peer.py'), ...call],
  pion: () => (...call) => [join(folder, 'pion'), ...call, join(folder, 'films')],
};
const PATHS = { mesh: 'mesh', relay: 'relay', unit: 'switch' };
/** In the quick form, each path and each peer has at least one call. */
const QUICK = ['chromium-mesh', 'firefox-unit', 'aiortc-relay', 'pion-unit'];

const children = new Set();
const log = createWriteStream(join(work, 'calls.log'));

/** Starts a program. Its standard error goes to the log. */
function start(command, prefix = []) {
  const [program, ...args] = [...prefix, ...command];
  const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  children.add(child);
  child.ended = new Promise((resolve) => child.once('exit', () => resolve(children.delete(child))));
  child.stderr.on('data', (data) => log.write(data));
  return child;
}

async function stop(child) {
  child.kill('SIGTERM');
  const insist = setTimeout(() => child.kill('SIGKILL'), 5_000);
  await child.ended;
  clearTimeout(insist);
}

/** A peer: `lines` has what it has reported, one object per second. */
function startPeer(command, prefix) {
  const child = start(command, prefix);
  const lines = [];
  createInterface({ input: child.stdout }).on('line', (line) => line.startsWith('{') && lines.push(JSON.parse(line)));
  return { child, lines, last: () => lines.at(-1) };
}

async function until(reached, seconds, isAlive) {
  for (const end = Date.now() + seconds * 1000; Date.now() < end && isAlive(); await sleep(100)) if (reached()) return true;
  return reached();
}

/** Rate and losses of both directions of the cable between two readings. `kbps`: what the senders sent into it. */
function between(a, b) {
  const of = (direction) => {
    const [bytes, packets, drops] = ['bytes', 'packets', 'drops'].map((name) => b[direction][name] - a[direction][name]);
    const lost = packets + drops > 0 ? drops / (packets + drops) : 0;
    return { kbps: Math.round((bytes * 8) / (b.at - a.at) / (1 - Math.min(lost, 0.99))), lost: Number(lost.toFixed(3)) };
  };
  return { up: of('up'), down: of('down') };
}

/** Goes through the phases and returns the rates in each, and the frames that both sides received in the last one. */
async function bottleneck(network, both, isAlive) {
  const rates = {};
  let frames;
  for (const [phase, { for_s, measured_s }] of Object.entries(PHASES)) {
    if (phase === 'during') network.shape(BOTTLENECK_KBPS);
    else network.widen();
    await sleep((for_s - measured_s) * 1000);
    const from = network.counters();
    frames = both.map((one) => one.last().frames);
    await sleep(measured_s * 1000);
    rates[phase] = between(from, network.counters());
    if (!isAlive()) return {};
  }
  return { rates, frames_after: both.map((one, i) => one.last().frames - frames[i]) };
}

/** Returns the processor time of this machine so far: idle, and in all, in ticks. */
function processors() {
  const [, ...ticks] = readFileSync('/proc/stat', 'utf8').split('\n', 1)[0].split(/\s+/).map(Number);
  return { idle: ticks[3], all: ticks.slice(0, 8).reduce((sum, each) => sum + each) };
}

/** One call of Chromium, which is beside the server, with a peer behind the cable. */
async function call(peer, path, network, url) {
  const [room, topology] = [`calls-${peer}-${path}`, PATHS[path]];
  const logs = join(work, room);
  mkdirSync(join(logs, 'peer'), { recursive: true });
  mkdirSync(join(logs, 'chromium'), { recursive: true });
  network.widen();
  const chromium = startPeer(PEERS.chromium(join(logs, 'chromium'))(url, room, topology));
  let tested;
  const isAlive = () => children.has(chromium.child) && (!tested || children.has(tested.child));
  try {
    // The participant who joined first opens the link. aiortc cannot renegotiate, so it must answer.
    const isSending = async () => {
      if (topology !== 'switch') return chromium.lines.length > 0;
      const { switch: members = [] } = await (await fetch(`${url}/v1/rooms/${room}`)).json();
      return members.some(({ sends }) => sends.some(({ kind }) => kind === 'video'));
    };
    for (const end = Date.now() + CONNECT_MAX_S * 1000; !(await isSending()); await sleep(200))
      if (Date.now() > end || !isAlive()) return { peer, path, failure: 'Chromium did not join the room' };
    const began = Date.now();
    tested = startPeer(PEERS[peer](join(logs, 'peer'))(url, room, topology), network.inside);
    const both = [chromium, tested];
    const isConnected = () => both.every((one) => one.last()?.state === 'connected');
    if (!(await until(isConnected, CONNECT_MAX_S, isAlive))) return { peer, path, failure: `states: ${both.map((one) => one.last()?.state ?? 'not started')}` };
    const moves = () => both.every((one) => one.last().frames >= FRAMES_MIN && one.last().changes >= CHANGES_MIN);
    const isMoving = await until(moves, CONNECT_MAX_S, isAlive);
    const moving_s = (Date.now() - began) / 1000;
    const cpu = processors();
    const { rates, frames_after } = isMoving && !quick ? await bottleneck(network, both, isAlive) : {};
    const cpu_after = processors();
    const idle = rates && Number(((cpu_after.idle - cpu.idle) / (cpu_after.all - cpu.all)).toFixed(2));
    const report = ({ version, route, codec, frames, changes, rtcp_sent, rtcp_received }) => ({ version, route, codec, frames, changes, rtcp_sent, rtcp_received });
    const result = { peer, path, moving_s, rates, frames_after, idle, chromium: report(chromium.last()), tested: report(tested.last()) };
    const failure = !isAlive() ? 'a peer has ended' : isMoving ? failureOf(result) : `frames: ${both.map((one) => one.last().frames)}, changes: ${both.map((one) => one.last().changes)}`;
    return { ...result, ...(failure && { failure }) };
  } finally {
    await Promise.all([tested, chromium].flatMap((one) => (one ? [stop(one.child)] : [])));
  }
}

/** Returns what is wrong with a call whose videos move. */
function failureOf({ path, frames_after, chromium, tested }) {
  if (frames_after?.some((frames) => frames < FRAMES_AFTER_MIN)) return `frames in the last ${PHASES.after.measured_s} s, Chromium and the peer: ${frames_after}`;
  for (const [name, one] of Object.entries({ Chromium: chromium, 'the peer': tested })) {
    if (path === 'relay' && one.route !== 'relay-relay') return `${name} uses candidates of type ${one.route}`;
    for (const direction of ['rtcp_sent', 'rtcp_received'])
      if (!one[direction].SR && !one[direction].RR) return `${name}: no sender or receiver report in ${direction}`;
  }
  return undefined;
}

async function serve() {
  const settings = { 'rtc.listen': `${HOST}:0`, 'turn.listen': `${HOST}:0`, 'turn.peers_allowed': `["${HOST}/24"]` };
  const set = Object.entries(settings).flatMap(([key, value]) => ['--set', `${key}=${value}`]);
  const server = start([binary, 'serve', '--listen', `${HOST}:0`, '--insecure-no-tls', '--insecure-no-auth', ...set]);
  const url = await new Promise((resolve, reject) => {
    createInterface({ input: server.stdout }).on('line', (line) => {
      const found = /listening on (http:\S+)/.exec(line);
      if (found) resolve(found[1]);
    });
    void server.ended.then(() => reject(new Error(`the server has ended; ${join(work, 'calls.log')} has its log`)));
  });
  return { server, url };
}

const pairs = chosen.length ? chosen : quick ? QUICK : Object.keys(PEERS).flatMap((peer) => Object.keys(PATHS).map((path) => `${peer}-${path}`));
const network = await openNetwork();
const results = [];
try {
  const { server, url } = await serve();
  for (const pair of pairs) {
    const [peer, path] = pair.split('-');
    if (!PEERS[peer] || !PATHS[path]) throw new Error(`${pair}: expected PEER-PATH of ${Object.keys(PEERS)} and ${Object.keys(PATHS)}, for example pion-mesh`);
    const result = await call(peer, path, network, url);
    results.push(result);
    const rates = result.rates && Object.values(result.rates).map(({ up, down }) => `${up.kbps}/${down.kbps}`).join(' ');
    console.log(`${pair}: ${result.failure ? `FAILED: ${result.failure}` : 'passed'}${result.moving_s ? `, both videos after ${result.moving_s.toFixed(1)} s` : ''}${rates ? `, kbit/s up/down: ${rates}` : ''}`);
  }
  if (!children.has(server)) throw new Error('the server has ended');
} finally {
  await Promise.all([...children].map(stop));
  network.close();
}
writeFileSync(join(work, 'results.json'), `${JSON.stringify(results, undefined, 1)}\n`);
if (!quick) console.log(`\n${tables(results, BOTTLENECK_KBPS)}`);
const failed = results.filter(({ failure }) => failure).length;
console.log(`${results.length - failed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
