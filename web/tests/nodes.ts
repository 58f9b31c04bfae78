// Several nodes that share an engine, with HAProxy in front of them, as in crates/cli/tests/cluster.
import { spawn, type ChildProcess } from 'node:child_process';
import { existsSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect } from '@playwright/test';
import { serve, type Server } from './server.ts';

export type Engine = 'redis' | 'nats';

/** HAProxy knows three nodes: those of deploy/haproxy.cfg. */
const NODES = 3;
const SECRET = 'a secret for tests only';
/** Maximum time until a program listens, ms. */
const START_MS = 15_000;

/** Debian installs servers in /usr/sbin, which is not in every user's `PATH`. */
const pathOf = (program: string): string | undefined =>
  [...(process.env.PATH ?? '').split(delimiter), '/usr/sbin'].map((folder) => join(folder, program)).find((path) => existsSync(path));

/** Returns why a cluster cannot run on this machine. */
export function missing(engine: Engine): string | undefined {
  const program = ['haproxy', `${engine}-server`].find((program) => !pathOf(program));
  return program && `skipped: ${program} is not installed (scripts/setup.sh does it)`;
}

/** Ports below those that the system assigns, so that no connection and no other server of a test takes them. */
const [PORT_MIN, PORT_MAX] = [20_000, 32_000];
const given = new Set<number>();

/** Returns a free port that the caller uses soon. */
async function freePort(): Promise<number> {
  for (;;) {
    const port = PORT_MIN + Math.floor(Math.random() * (PORT_MAX - PORT_MIN));
    if (given.has(port)) continue;
    given.add(port);
    const server = createServer();
    const isFree = await new Promise<boolean>((resolve) => server.once('error', () => resolve(false)).listen(port, '127.0.0.1', () => resolve(true)));
    if (!isFree) continue;
    await new Promise((resolve) => server.close(resolve));
    return port;
  }
}

export interface Cluster {
  /** URL of HAProxy. */
  readonly url: string;
  /** The nodes, which HAProxy selects from. */
  readonly nodes: readonly Server[];
  stop(): Promise<void>;
}

export async function startCluster(engine: Engine): Promise<Cluster> {
  const folder = mkdtempSync(join(tmpdir(), 'millrace-nodes-'));
  const children: ChildProcess[] = [];
  const nodes: Server[] = [];
  /** Starts a program, and returns when it accepts connections at `port`. Its output goes to a file in the folder. */
  const start = async (program: string, args: string[], port: number, env: NodeJS.ProcessEnv = {}): Promise<void> => {
    const log = join(folder, `${program}.log`);
    const output = openSync(log, 'a');
    const child = spawn(pathOf(program)!, args, { stdio: ['ignore', output, output], env: { ...process.env, ...env } });
    children.push(child);
    const listens = () =>
      new Promise<boolean>((resolve) => {
        const socket = connect(port, '127.0.0.1', () => resolve(true)).once('error', () => resolve(false)).once('close', () => resolve(false));
        socket.once('connect', () => socket.destroy());
      });
    await expect.poll(listens, { timeout: START_MS, message: `${program} listens: ${readFileSync(log, 'utf8')}` }).toBe(true);
  };
  const stop = async (): Promise<void> => {
    await Promise.all(nodes.map((node) => node.kill()));
    const gone = children.map((child) => new Promise<void>((resolve) => (child.exitCode === null && child.signalCode === null ? child.once('exit', () => resolve()) : resolve())));
    for (const child of children) child.kill('SIGKILL');
    await Promise.all(gone);
    rmSync(folder, { recursive: true });
  };
  try {
    const broker = await freePort();
    const redis = ['--bind', '127.0.0.1', '--port', String(broker), '--dir', folder, '--save', ''];
    const nats = ['--addr', '127.0.0.1', '--port', String(broker), '-js', '-sd', folder];
    await start(`${engine}-server`, engine === 'redis' ? redis : nats, broker);
    const agents = await Promise.all(Array.from({ length: NODES }, freePort));
    const started = agents.map((agent) => serve(undefined, ['--engine', `${engine}://127.0.0.1:${broker}`, '--set', `server.agent=127.0.0.1:${agent}`, '--set', `server.secret=${SECRET}`]));
    // All of them are awaited, so that a failed start leaves no process behind.
    for (const result of await Promise.allSettled(started)) {
      if (result.status === 'rejected') throw result.reason;
      nodes.push(result.value);
    }
    const [port, figures] = [await freePort(), await freePort()];
    const env: NodeJS.ProcessEnv = { MILLRACE_BIND: `127.0.0.1:${port}`, MILLRACE_FIGURES: `127.0.0.1:${figures}` };
    nodes.forEach(({ url }, i) => Object.assign(env, { [`MILLRACE_NODE${i + 1}`]: new URL(url).host, [`MILLRACE_AGENT${i + 1}`]: String(agents[i]) }));
    await start('haproxy', ['-f', fileURLToPath(new URL('../../deploy/haproxy.cfg', import.meta.url))], port, env);
    const url = `http://127.0.0.1:${port}`;
    const ready = async () => Promise.all([url, ...nodes.map((node) => node.url)].map((at) => fetch(`${at}/readyz`).then(({ status }) => status, () => 0)));
    await expect.poll(ready, { timeout: START_MS, message: 'all nodes are ready' }).toEqual([200, 200, 200, 200]);
    return { url, nodes, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}
