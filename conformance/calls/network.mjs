// The network of a run: this process and its server in one network namespace, the peer under test in another, and one
// cable between them, whose rate the kernel's token bucket filter limits in both directions. All of it disappears with
// the processes.
import { execFileSync, spawn } from 'node:child_process';
import { readlinkSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

export const HOST = '10.99.0.1';
const PEER = '10.99.0.2';
const DEVICE = 'cable';
/** Rate of the cable when it is no bottleneck, and the time for which a packet can wait in its queue. */
const WIDE_KBPS = 50_000;
const QUEUE_MS = 300;

const run = (program, ...args) => execFileSync(program, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });

export async function openNetwork() {
  // The namespace of the peer lives as long as this process.
  const holder = spawn('unshare', ['--net', 'sleep', 'infinity'], { stdio: 'ignore' });
  const own = readlinkSync('/proc/self/ns/net');
  const there = `/proc/${holder.pid}/ns/net`;
  for (let i = 0; readlinkSync(there) === own; i++) {
    if (i > 200) throw new Error('unshare created no network namespace within 10 s');
    await sleep(50);
  }
  const inside = ['nsenter', `--net=${there}`];
  const peer = (...args) => run(inside[0], inside[1], ...args);
  run('ip', 'link', 'add', DEVICE, 'type', 'veth', 'peer', 'name', DEVICE, 'netns', String(holder.pid));
  for (const [at, address, other] of [[run, HOST, PEER], [peer, PEER, HOST]]) {
    at('sysctl', '-qw', 'net.ipv6.conf.all.disable_ipv6=1');
    at('ip', 'link', 'set', 'lo', 'up');
    at('ip', 'address', 'add', `${address}/24`, 'dev', DEVICE);
    at('ip', 'link', 'set', DEVICE, 'up');
    // Browsers without a camera use only the address of the default route.
    at('ip', 'route', 'add', 'default', 'via', other);
  }
  const shape = (kbps) => {
    for (const at of [run, peer])
      at('tc', 'qdisc', 'replace', 'dev', DEVICE, 'root', 'tbf', 'rate', `${kbps}kbit`, 'burst', '6000', 'latency', `${QUEUE_MS}ms`);
  };
  /** Returns what the cable carried and dropped so far. `up`: from the peer. */
  const counters = () => {
    const of = (at) => {
      const [{ bytes, packets, drops }] = JSON.parse(at('tc', '-s', '-j', 'qdisc', 'show', 'dev', DEVICE));
      return { bytes, packets, drops };
    };
    return { at: Date.now(), up: of(peer), down: of(run) };
  };
  shape(WIDE_KBPS);
  return { inside, shape, widen: () => shape(WIDE_KBPS), counters, close: () => holder.kill('SIGKILL') };
}
