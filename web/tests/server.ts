// Starts the real server and the real simulator, and stops them by their process handles.
import { spawn, type ChildProcess } from 'node:child_process';
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const START_MS = 15_000;

export function binary(): string {
  const target = process.env.CARGO_TARGET_DIR ?? join(dirname(fileURLToPath(import.meta.url)), '../../target');
  const path = process.env.MILLRACE_BIN ?? join(target, 'debug/millrace');
  if (!existsSync(path))
    throw new Error(`These tests run against the real server, and ${path} does not exist: cargo build -p millrace-cli, or set MILLRACE_BIN.`);
  return path;
}

export interface Server {
  readonly url: string;
  /** URL of the admin listener; settles only with the setting `admin.listen`. */
  readonly admin: Promise<string>;
  stop(): Promise<void>;
  /** Kills the server with SIGKILL, so that it cannot close its connections in order. */
  kill(): Promise<void>;
}

/**
 * Starts a server. `listen`: HOST:PORT; port 0 selects a free port. `env`: added to the environment of this process.
 */
export async function serve(listen = '127.0.0.1:0', args: string[] = [], env: NodeJS.ProcessEnv = {}): Promise<Server> {
  const child = spawn(binary(), ['serve', '--listen', listen, ...args], { stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, ...env } });
  let complaint = '';
  child.stderr.on('data', (chunk: Buffer) => (complaint = (complaint + chunk.toString()).slice(-4_000)));
  let tellAdmin!: (url: string) => void;
  const admin = new Promise<string>((resolve) => (tellAdmin = resolve));
  const url = await new Promise<string>((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`no "listening on" from the server within ${START_MS} ms. ${complaint}`)), START_MS);
    child.once('error', reject);
    child.once('exit', (code) => reject(new Error(`the server ended with ${code}. ${complaint}`)));
    createInterface({ input: child.stdout }).on('line', (line) => {
      const [, door, found] = /(listening|admin) on (https?:\/\/\S+)/.exec(line) ?? [];
      if (!found) return;
      if (door === 'admin') return tellAdmin(found);
      clearTimeout(late);
      resolve(found);
    });
  }).catch(async (error: unknown) => {
    await end(child);
    throw error;
  });
  const kill = async (): Promise<void> => {
    const gone = new Promise<void>((resolve) => child.once('exit', () => resolve()));
    if (child.kill('SIGKILL')) await gone;
  };
  return { url, admin, stop: () => end(child), kill };
}

/** Starts simulated cars, which also answer requests unless `args` has `--no-answers`. */
export function simulate(url: string, cars = 6, env: NodeJS.ProcessEnv = {}, args: string[] = []): { stop(): Promise<void> } {
  const child = spawn(binary(), ['simulate', 'fleet', '--cars', String(cars), '--seed', '7', '--interval', '200ms', '--to', url, ...args], {
    stdio: 'ignore',
    env: { ...process.env, ...env },
  });
  return { stop: () => end(child) };
}

/** Starts simulated prices. `every`: time between two ticks. */
export function simulateTicker(url: string, every = '50ms', env: NodeJS.ProcessEnv = {}): { stop(): Promise<void> } {
  const child = spawn(binary(), ['simulate', 'ticker', '--interval', every, '--to', url], { stdio: 'ignore', env: { ...process.env, ...env } });
  return { stop: () => end(child) };
}

/** Sends SIGTERM, and SIGKILL after 3 s. */
export async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return;
  const gone = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  child.kill('SIGTERM');
  const insist = setTimeout(() => child.kill('SIGKILL'), 3_000);
  await gone;
  clearTimeout(insist);
}
