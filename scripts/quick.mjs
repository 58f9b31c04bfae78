// Tests the parts that a change affects, in about three minutes: node scripts/quick.mjs [BASE]
//
// The change is everything since BASE, including uncommitted files. Default of BASE: the commit where this branch
// left main; on main, the previous commit.
// Prints the steps that run and the ones that are left out, and ends with "N passed, N failed".
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';

process.chdir(new URL('..', import.meta.url).pathname);
const target = (process.env.CARGO_TARGET_DIR ??= `${process.cwd()}/target`);
process.env.MILLRACE_BIN = `${target}/debug/millrace`;
// Most tests wait, so more threads than processors are useful, as in scripts/test.sh.
process.env.RUST_TEST_THREADS ??= '8';

/** Integration tests of these crates take a minute or measure the machine; they run if the crate itself has changed. */
const SLOW = new Set(['cli', 'lab']);
/** Tests of a page that are not named after its folder. */
const SPECS = { carcare: ['carcare', 'replay', 'motion'], rooms: ['room'], start: ['start', 'pages'] };
/** Page tests that take a minute or more. */
const SLOW_SPECS = ['rooms', 'simulcast'];

const git = (...args) => execFileSync('git', args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
const lines = (text) => text.split('\n').filter(Boolean);

function base() {
  if (process.argv[2]) return process.argv[2];
  const head = git('rev-parse', 'HEAD');
  for (const main of ['main', 'origin/main']) {
    try {
      const left = git('merge-base', 'HEAD', main);
      if (left !== head) return left;
      return git('status', '--porcelain') ? 'HEAD' : 'HEAD~1';
    } catch {
      // The branch does not exist in this clone.
    }
  }
  return 'HEAD~1';
}

const from = base();
const changed = [...new Set([...lines(git('diff', '--name-only', from)), ...lines(git('ls-files', '--others', '--exclude-standard'))])];
const under = (...folders) => changed.filter((file) => folders.some((folder) => file.startsWith(folder)));

const steps = [];
const leftOut = [];
const step = (name, program, ...args) => steps.push({ name, program, args });

// Rust: the changed crates, and the crates that depend on them if more than tests has changed.
const { packages } = JSON.parse(execFileSync('cargo', ['metadata', '--format-version', '1', '--no-deps', '--locked'], { encoding: 'utf8', maxBuffer: 1 << 28 }));
const short = (name) => name.replace('millrace-', '');
const has = (crate, kind) => packages.find(({ name }) => short(name) === crate).targets.some((one) => one.kind.includes(kind) || one.name === kind);
const inCrate = (file) => /^crates\/([^/]+)\//.exec(file)?.[1];
const touched = new Set(changed.map(inCrate).filter(Boolean));
const source = new Set(changed.filter((file) => !/^crates\/[^/]+\/(tests|benches)\//.test(file)).map(inCrate).filter(Boolean));
if (under('Cargo.toml', 'Cargo.lock', 'clippy.toml').length > 0) for (const { name } of packages) source.add(short(name));
const users = new Set(packages.filter(({ dependencies }) => dependencies.some(({ name }) => source.has(short(name)))).map(({ name }) => short(name)));
const units = [...new Set([...touched, ...source, ...users])].sort();
const integration = units.filter((crate) => has(crate, 'it') && (touched.has(crate) || (source.has(crate) && !SLOW.has(crate))));
// The features of dependencies depend on the selected crates. With `cli` they equal those of the workspace, so no
// dependency is built twice.
const select = (crates) => [...new Set(['cli', ...crates])].flatMap((crate) => ['-p', `millrace-${crate}`]);
const documents = changed.filter((file) => file.endsWith('.md'));
if (units.length > 0) {
  step('formatting', 'cargo', 'fmt', '--all', '--check');
  step(`unit tests: ${units.join(', ')}`, 'cargo', 'test', '--locked', '--quiet', ...select(units), '--lib', '--bins');
  leftOut.push('clippy, examples in the documentation, clusters, fuzzing, conformance, the lab, instructions');
}
const ran = [...integration, ...(documents.length > 0 && !integration.includes('cli') ? ['cli'] : [])];
if (ran.length > 0) step('build integration tests', 'cargo', 'test', '--locked', '--quiet', ...select(ran), '--test', 'it', '--no-run');
for (const crate of ran) {
  const filter = integration.includes(crate) ? [] : ['docs::', 'readme::'];
  steps.push({ name: `integration tests: ${[crate, ...filter].join(' ')}`, run: () => integrationTest(crate, select(ran), filter) });
}
const missing = units.filter((crate) => has(crate, 'it') && !integration.includes(crate));
if (missing.length > 0) leftOut.push(`integration tests: ${missing.join(', ')}`);

/** Runs the binary itself: `cargo test` would run those of all crates that are selected. Returns its exit code. */
function integrationTest(crate, selected, filter) {
  const messages = execFileSync('cargo', ['test', '--locked', '--quiet', ...selected, '--test', 'it', '--no-run', '--message-format=json'], { encoding: 'utf8', maxBuffer: 1 << 28, stdio: ['ignore', 'pipe', 'inherit'] });
  const built = lines(messages).map((line) => JSON.parse(line)).find((one) => one.executable && one.target.name === 'it' && one.manifest_path.endsWith(`/crates/${crate}/Cargo.toml`));
  return spawnSync(built.executable, ['--quiet', ...filter], { stdio: 'inherit', cwd: `crates/${crate}` }).status;
}

// The client.
const sdk = under('sdk/typescript/');
if (sdk.some((file) => !file.endsWith('.md'))) {
  step('the client and the binary', 'make', '--no-print-directory', 'build');
  step('types of the client', 'npm', '--prefix', 'sdk/typescript', 'run', '--silent', 'check');
  steps.push({ name: 'client tests in Node', run: () => spawnSync('npx', ['vitest', 'run', '--project', 'node'], { stdio: 'inherit', cwd: 'sdk/typescript' }).status });
  leftOut.push('client tests in Chromium and Firefox, and in applications of React, Svelte and Vue');
}

// Pages, by folder.
const specs = new Set();
const exists = (name) => existsSync(`web/tests/${name}.spec.ts`);
for (const file of under('web/')) {
  const page = /^web\/src\/pages\/([^/]+)\//.exec(file)?.[1];
  const spec = /^web\/tests\/(?:firefox\/)?([^/]+)\.spec\.ts$/.exec(file)?.[1];
  const names = spec ? [spec] : page ? (SPECS[page] ?? [page]) : file.endsWith('.md') ? [] : ['pages', 'start', 'lab'];
  names.filter(exists).forEach((name) => specs.add(name));
}
if (specs.size > 0) {
  if (steps.every(({ program }) => program !== 'make')) step('the pages and the binary', 'make', '--no-print-directory', 'build');
  step('types of the pages', 'npm', '--prefix', 'web', 'run', '--silent', 'check');
  const run = [...specs].filter((name) => !SLOW_SPECS.includes(name)).sort();
  if (run.length > 0) step(`page tests: ${run.join(', ')}`, 'npm', '--prefix', 'web', 'test', '--silent', '--', ...run.map((name) => `/${name}.spec.ts`));
  const rest = readdirSync('web/tests').flatMap((file) => /^(.*)\.spec\.ts$/.exec(file)?.[1] ?? []).filter((name) => !run.includes(name));
  if (rest.length > 0) leftOut.push(`page tests: ${rest.join(', ')}`);
}

// Code blocks of the documents.
const run = documents.filter((file) => existsSync(file) && (file === 'README.md' || file === 'sdk/typescript/README.md' || file.startsWith('docs/')));
if (run.length > 0) {
  if (steps.every(({ program }) => program !== 'make')) step('the client and the binary', 'make', '--no-print-directory', 'build');
  step(`code blocks: ${run.length} documents`, process.execPath, 'scripts/docs/run.mjs', ...run);
}

if (under('firmware/').length > 0) step('firmware of the LED module', 'firmware/test.sh');
if (under('hw/').length > 0) step('board of the LED module', 'hw/test.sh');
if (under('scripts/').length > 0) step('scripts', 'scripts/steps-test.sh');
if (under('scripts/docs/').length > 0) step('the runner of code blocks', process.execPath, '--test', 'scripts/docs/test.mjs');
for (const [folder, command] of [['fuzz/', 'fuzz/run.sh'], ['conformance/', 'conformance/quick.sh'], ['deploy/', 'cargo test -p millrace-cli --test cluster']])
  if (under(folder).length > 0) leftOut.push(`${folder}: ${command}`);

console.log(`${changed.length} files have changed since ${from}`);
for (const { name } of steps) console.log(`  runs:     ${name}`);
for (const name of [...new Set(leftOut)]) console.log(`  left out: ${name}`);
const seconds = () => Math.round(performance.now() / 1000);
let failed = 0;
const table = [];
for (const { name, program, args, run } of steps) {
  console.log(`\n=== ${name}`);
  const began = seconds();
  const status = run ? run() : spawnSync(program, args, { stdio: 'inherit' }).status;
  if (status !== 0) failed++;
  table.push(`${name.padEnd(60)} ${status === 0 ? 'passed' : 'FAILED'} ${seconds() - began} s`);
}
console.log(`\n${table.join('\n')}\n${seconds()} s in all; make test runs everything\n${steps.length - failed} passed, ${failed} failed`);
process.exitCode = failed === 0 ? 0 : 1;
