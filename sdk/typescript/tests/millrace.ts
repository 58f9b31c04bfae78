// Starts the real server on a free port.
import { spawn, type ChildProcess } from 'node:child_process';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

export interface RunningServer {
  readonly url: string;
  stop(): Promise<void>;
  /** Kills the server, so that it cannot close its connections. */
  kill(): Promise<void>;
}

/**
 * Returns MILLRACE_BIN, or the binary built by `cargo build`. Throws if it does not exist, because these tests need it.
 */
export function binary(): string {
  const target = process.env['CARGO_TARGET_DIR'] ?? fileURLToPath(new URL('../../../target', import.meta.url));
  const path = process.env['MILLRACE_BIN'] ?? `${target}/debug/millrace`;
  if (!existsSync(path)) throw new Error(`no server at ${path}: run \`cargo build\`, or set MILLRACE_BIN`);
  return path;
}

/** Starts a server. `settings` are as for `--set`. */
export async function startMillrace(settings: readonly string[] = [], listen = '127.0.0.1:0'): Promise<RunningServer> {
  const flags = settings.flatMap((setting) => ['--set', setting]);
  const child = spawn(binary(), ['serve', '--listen', listen, ...flags], { stdio: ['ignore', 'pipe', 'pipe'] });
  const exited = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  return { url: await listening(child), stop: () => (child.kill(), exited), kill: () => (child.kill('SIGKILL'), exited) };
}

function listening(child: ChildProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    let text = '';
    const timer = setTimeout(() => fail('was not listening after 10 s'), 10_000);
    const fail = (what: string): void => {
      child.kill();
      reject(new Error(`millrace ${what}: ${text}`));
    };
    for (const output of [child.stdout!, child.stderr!]) {
      output.on('data', (piece) => {
        text += piece;
        const url = /listening on (https?:\/\/\S+)/.exec(text)?.[1];
        if (!url) return;
        clearTimeout(timer);
        resolve(url);
      });
    }
    child.once('exit', (code) => fail(`ended with ${code}`));
  });
}
