// One shell for the blocks of one document: an empty home, `millrace` on the PATH, and a network of its own.
import { spawn, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

/** Maximum duration of a block, and of the start of a server. */
const BLOCK_MS = 90_000;
const LISTEN_MS = 20_000;
/** Time that a block runs which only Ctrl-C ends. */
const ENDLESS_MS = 2_000;
/** curl's exit code for --max-time. */
const CURL_TIMEOUT = 28;

/** Namespaces of a document: user, network, processes. All its processes end with its shell. */
const APART = ['--user', '--map-root-user', '--net', '--pid', '--fork', '--mount-proc', '--kill-child'];
const PATH = `/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin`;

/** Returns why documents cannot have a network of their own on this machine, or undefined if they can. */
export function obstacle() {
  const { status, stderr, error } = spawnSync('unshare', [...APART, 'ip', 'link', 'set', 'lo', 'up'], { encoding: 'utf8', env: { PATH } });
  return status === 0 ? undefined : `unshare: ${error?.message ?? stderr.trim()}`;
}

/** The TypeScript client. */
const SDK = fileURLToPath(new URL('../../sdk/typescript', import.meta.url));

/** Definitions for the shell. The first command of a block that fails ends the shell. */
const PRELUDE = `
failed() {
  [ "$1" = ${CURL_TIMEOUT} ] && [[ "$3" == *--max-time* ]] && return
  printf 'failed\\t%s\\t%s\\t%s\\n' "$1" "$2" "\${3//[$'\\n\\t']/ }" >&3
  exit 1
}
trap 'failed $? $LINENO "$BASH_COMMAND"' ERR
listening() { ss -Htuln 2>/dev/null | awk '{print $1, $5}' | sort; }
`;

export class Shell {
  #folder = mkdtempSync(join(tmpdir(), 'millrace-docs-'));
  #blocks = 0;
  #lines = [];
  #waiting;

  /** `programs`: paths of programs by their names, for the PATH. */
  constructor(programs) {
    const bin = join(this.#folder, 'bin');
    this.home = join(this.#folder, 'home');
    [bin, this.home].forEach((folder) => mkdirSync(folder));
    for (const [name, path] of Object.entries(programs)) symlinkSync(path, join(bin, name));
    // Scripts import the client as in a project that contains it.
    const modules = join(this.#folder, 'node_modules/@millrace');
    mkdirSync(modules, { recursive: true });
    symlinkSync(SDK, join(modules, 'client'));
    const env = { HOME: this.home, PATH: `${bin}:${PATH}`, LANG: 'C.UTF-8', TERM: 'dumb' };
    this.child = spawn('unshare', [...APART, 'bash', '--norc', '--noprofile'], { cwd: this.home, env, stdio: ['pipe', 'ignore', 'ignore', 'pipe'] });
    createInterface({ input: this.child.stdio[3] }).on('line', (line) => this.#report(line));
    this.child.once('exit', (code) => this.#report(`ended\t${code}`));
    this.child.stdin.on('error', () => {});
    this.#write(`ip link set lo up\n${PRELUDE}`);
  }

  #report(line) {
    this.#lines.push(line);
    this.#waiting?.();
  }

  #write(text) {
    this.child.stdin.write(text);
  }

  /** Returns the next report of the shell as fields, or undefined after `ms`. */
  async #next(ms) {
    const until = Date.now() + ms;
    while (this.#lines.length === 0) {
      const left = until - Date.now();
      if (left <= 0) return undefined;
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, left);
        this.#waiting = () => (clearTimeout(timer), resolve());
      });
    }
    return this.#lines.shift().split('\t');
  }

  write(name, text) {
    const path = join(this.home, name);
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, text);
    return path;
  }

  /**
   * Runs a block. `mode`: `foreground`; `background` for servers, until a new address listens; `endless` for a block
   * that only Ctrl-C ends. Returns { out, err, failure? }; `failure` is { line, command, why }.
   */
  async run(script, mode = 'foreground') {
    const base = join(this.#folder, `block-${++this.#blocks}`);
    writeFileSync(`${base}.sh`, script);
    const run = `. '${base}.sh' >'${base}.out' 2>'${base}.err' </dev/null`;
    if (mode === 'background') {
      this.#write(`before=$(listening)\n{ ${run}; } 3>&- &\nstarted=$!\nfor _ in $(seq ${LISTEN_MS / 100}); do sleep 0.1
[ "$(listening)" = "$before" ] || { listens=1; break; }\nkill -0 $started 2>/dev/null || break\ndone\ndisown -a
if [ -z "$listens" ]; then printf 'failed\\t-\\t1\\tthe server does not listen\\n' >&3; exit 1; fi\nunset listens\nprintf 'done\\n' >&3\n`);
    } else if (mode === 'endless') {
      this.#write(`( trap - ERR; ${run} ) 3>&- &\nstarted=$!\nsleep ${ENDLESS_MS / 1000}
if kill -0 $started 2>/dev/null; then pkill -INT -P $started; kill $started 2>/dev/null || true; fi\nprintf 'done\\n' >&3\n`);
    } else {
      // A later block waits only for its own processes.
      this.#write(`${run}\ndisown -a\nprintf 'done\\n' >&3\n`);
    }
    const [what, code, line, command] = (await this.#next(BLOCK_MS)) ?? ['late'];
    const read = (ending) => {
      try {
        return readFileSync(`${base}.${ending}`, 'utf8');
      } catch {
        return '';
      }
    };
    const printed = { out: read('out'), err: read('err') };
    if (what === 'done') return printed;
    if (what === 'failed') return { ...printed, failure: { line: Number(line), command, why: code === '-' ? '' : `exit code ${code}` } };
    if (what === 'late') return { ...printed, failure: { line: 1, command: script.trim(), why: `still running after ${BLOCK_MS / 1000} s` } };
    return { ...printed, failure: { line: 1, command: script.trim(), why: `the shell ended with ${code}` } };
  }

  /** Ends the shell and all its processes. */
  async close() {
    const ended = new Promise((resolve) => (this.child.exitCode !== null || this.child.signalCode !== null ? resolve() : this.child.once('exit', resolve)));
    this.child.kill('SIGKILL');
    await ended;
    rmSync(this.#folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 });
  }
}
