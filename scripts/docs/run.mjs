// Runs the code blocks of the documents: node scripts/docs/run.mjs [DOCUMENT ..]
//
// Without arguments: README.md, docs/**/*.md and sdk/typescript/README.md. MILLRACE_BIN names the binary (default:
// target/debug/millrace). CONTRIBUTING.md, "Documents", describes the directives above a block.
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { isAbsolute, join, relative, resolve } from 'node:path';
import { checkApplication } from './applications.mjs';
import { blocks, matches } from './blocks.mjs';
import { Shell, obstacle } from './shell.mjs';
import { check, program } from './types.mjs';

const ROOT = join(import.meta.dirname, '../..');
/** Documents that run at the same time: most of their time they wait. */
const PARALLEL = 4;
const DIRECTIVES = ['application', 'background', 'file', 'given', 'not run', 'output', 'run', 'run, then Ctrl-C', 'secure'];
/** Lines of output that a failure shows. */
const SHOWN = 30;

export function documents() {
  const below = readdirSync(join(ROOT, 'docs'), { recursive: true }).map((name) => `docs/${name}`);
  return ['README.md', ...below.filter((name) => name.endsWith('.md') && !name.includes('node_modules/') && !name.includes('.vitepress/')).sort(), 'sdk/typescript/README.md'];
}

/**
 * Runs the blocks of one document in order. Returns { failures, notRun, skipped, ran, programs, application }:
 * `failures` and `notRun` as text, `programs` and `application` for the check of types.
 *
 * `file`: name for messages. `programs`: paths of the programs for the PATH. `shells`: false if this machine cannot
 * run shells; then these blocks count as skipped.
 */
export async function runDocument(file, text, { programs = {}, shells = true } = {}) {
  const result = { failures: [], notRun: [], skipped: 0, ran: 0, programs: [], application: { file, parts: [] } };
  const scripts = { ts: [], js: [] };
  let shell;
  let previous;
  let broken = false;
  const fail = (line, what, printed = '') => result.failures.push(`${file}:${line}: ${what}${indented(printed)}`);
  const all = blocks(text);
  try {
    for (const [index, block] of all.entries()) {
      const { language, directives, line } = block;
      const unknown = Object.keys(directives).filter((name) => !DIRECTIVES.includes(name));
      if (unknown.length > 0) fail(line, `unknown directive: ${unknown.join(', ')}`);
      if ('not run' in directives) {
        if (!directives['not run']) fail(line, 'a block that is not run needs a reason');
        result.notRun.push(`${file}:${line}: ${directives['not run']}`);
        continue;
      }
      if ('application' in directives) {
        result.application.parts.push({ name: directives.application, language, text: block.text, line });
        result.ran++;
        continue;
      }
      const needsShell = language === 'sh' || language === 'toml' || 'file' in directives || 'output' in directives;
      if (needsShell && !shells) {
        result.skipped++;
        continue;
      }
      if (needsShell) shell ??= new Shell(programs);
      if ('output' in directives) {
        result.ran++;
        if (!previous) fail(line, 'no command is above this output');
        else if (!broken && !promisedBy(previous).some((printed) => matches(block.text, printed))) fail(line, 'the command above prints something else:', printedBy(previous));
        continue;
      }
      if ('file' in directives) shell.write(directives.file, block.text);
      result.ran++;
      if (language === 'sh') {
        // After a failure, later blocks would only fail for the same reason.
        if (broken) continue;
        const mode = 'background' in directives ? 'background' : 'run, then Ctrl-C' in directives ? 'endless' : 'foreground';
        previous = await shell.run(block.text, mode);
        const { failure } = previous;
        if (failure) {
          broken = true;
          fail(line + failure.line - 1, `\`${failure.command.split('\n')[0]}\`${failure.why && `: ${failure.why}`}`, printedBy(previous));
        }
      } else if (language === 'toml') {
        if (!('file' in directives)) shell.write(`checked-${index}.toml`, block.text);
        const name = directives.file ?? `checked-${index}.toml`;
        const { failure, ...printed } = broken ? {} : await shell.run(`millrace config check --config '${name}'\n`);
        if (failure) {
          broken = true;
          fail(line, 'this is not a valid configuration:', printedBy(printed));
        }
      } else if (language === 'json') {
        const wrong = parseError(block.text);
        if (wrong) fail(line, wrong);
      } else if (language === 'ts' || language === 'js') {
        if (!('file' in directives)) scripts[language].push(block);
        else syntax(block, fail);
      } else if (language === 'text') {
        result.ran--;
      } else if (!('file' in directives)) {
        fail(line, `a block of language ${language || '(none)'} is not run: name a file above it, \`<!-- file: NAME -->\` or \`<!-- application: NAME -->\`, or a reason, \`<!-- not run: REASON -->\``);
      } else if (language === 'html') {
        for (const [, script] of block.text.matchAll(/<script type="module">(.*?)<\/script>/gs)) syntax({ ...block, text: script, directives: { file: 'page.mjs' } }, fail);
      } else if (!all.slice(index + 1).some((later) => later.text.includes(directives.file))) {
        fail(line, `no later block uses ${directives.file}`);
      }
    }
  } finally {
    await shell?.close();
  }
  for (const language of ['ts', 'js'])
    if (scripts[language].length > 0) result.programs.push({ file, strict: language === 'ts', ...program(scripts[language]) });
  return result;
}

/** Returns what a person who runs the command sees: output and messages, in either order, or one of the two. */
const promisedBy = ({ out, err }) => [out, err, `${out}${err}`, `${err}${out}`];
const printedBy = ({ out = '', err = '' }) => `${out}${err}`;

function indented(printed) {
  const lines = printed.trimEnd().split('\n');
  const shown = lines.length > SHOWN ? ['…', ...lines.slice(-SHOWN)] : lines;
  return printed.trim() ? `\n${shown.map((line) => `    ${line}`).join('\n')}` : '';
}

/** Checks the syntax of JavaScript in a file. */
function syntax({ text, line, directives }, fail) {
  if (!/\.m?js$/.test(directives.file)) return;
  const { status, stderr } = spawnSync(process.execPath, ['--check', '--input-type=module', '-'], { input: text, encoding: 'utf8' });
  if (status !== 0) fail(line, 'node does not read this script:', stderr.split('\n').slice(0, 5).join('\n'));
}

/** Returns why a block is neither one JSON value nor one per line; undefined if it is. */
function parseError(text) {
  try {
    JSON.parse(text);
  } catch (error) {
    try {
      text.trim().split('\n').forEach((line) => JSON.parse(line));
    } catch {
      return `this is not JSON: ${error.message}`;
    }
  }
}

async function main(names) {
  const began = performance.now();
  const binary = resolve(process.env.MILLRACE_BIN ?? join(process.env.CARGO_TARGET_DIR ?? join(ROOT, 'target'), 'debug/millrace'));
  if (!existsSync(binary)) throw new Error(`${binary} does not exist: run make build, or set MILLRACE_BIN`);
  if (!existsSync(join(ROOT, 'sdk/typescript/dist/index.d.ts'))) throw new Error('the client is not built: run make sdk');
  const missing = obstacle();
  const options = { programs: { millrace: binary, node: process.execPath }, shells: !missing };
  const files = names.length > 0 ? names.map((name) => relative(ROOT, isAbsolute(name) ? name : resolve(name))) : documents();
  const results = [];
  const waiting = [...files];
  await Promise.all(
    Array.from({ length: PARALLEL }, async () => {
      for (let file = waiting.shift(); file !== undefined; file = waiting.shift()) {
        const start = performance.now();
        const result = await runDocument(file, readFileSync(join(ROOT, file), 'utf8'), options);
        results.push({ file, seconds: (performance.now() - start) / 1000, ...result });
      }
    }),
  );
  const wrong = check(results.flatMap((one) => one.programs));
  for (const { application } of results) if (application.parts.length > 0) wrong.push(...(await checkApplication(application)));
  const failures = [...results.flatMap((one) => one.failures), ...wrong.map(({ file, line, message }) => `${file}:${line}: ${message}`)];
  const notRun = results.flatMap((one) => one.notRun);
  const sum = (of) => results.map(of).reduce((total, one) => total + one, 0);
  for (const one of notRun) console.log(`not run  ${one}`);
  for (const { file, seconds } of results.filter((one) => one.seconds > 10)) console.log(`slow     ${file}: ${seconds.toFixed(0)} s`);
  if (missing) console.log(`SKIPPED: ${sum((one) => one.skipped)} blocks that need a shell, because a document needs a network of its own: ${missing}`);
  for (const one of failures) console.error(`FAILED   ${one}`);
  console.log(`${files.length} documents, ${sum((one) => one.ran)} blocks run, ${notRun.length} not run, ${failures.length} failed, ${((performance.now() - began) / 1000).toFixed(0)} s`);
  return failures.length > 0 ? 1 : 0;
}

if (import.meta.url === `file://${process.argv[1]}`) process.exitCode = await main(process.argv.slice(2));
