// Checks the applications of documents, in React, Svelte or Vue, with the compilers of the client's tests.
import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';

const SDK = join(import.meta.dirname, '../../sdk/typescript');
const APPS = join(SDK, 'tests/apps');
/** By the language of a block: the command, the options of the compiler, and the form of a finding. */
const CHECKERS = {
  tsx: { command: ['tsc', '-p', '.'], options: { jsx: 'react-jsx' }, finding: /^(?<name>\S+?)\((?<line>\d+),\d+\): error (?<message>.*)$/ },
  vue: { command: ['vue-tsc', '-p', '.'], options: {}, finding: /^(?<name>\S+?)\((?<line>\d+),\d+\): error (?<message>.*)$/ },
  svelte: { command: ['svelte-check', '--tsconfig', './tsconfig.json', '--output', 'machine', '--fail-on-warnings'], options: {}, finding: /^\d+ (?:ERROR|WARNING) "(?<name>.*?)" (?<line>\d+):\d+ (?<message>.*)$/ },
};

/**
 * Checks the application of a document: { file, parts: [{ name, language, text, line }] }. `line` is the line of the
 * document where a part begins. Returns what is wrong: [{ file, line, message }].
 */
export async function checkApplication({ file, parts }) {
  const language = Object.keys(CHECKERS).find((one) => parts.some((part) => part.language === one));
  if (!language) return [{ file, line: parts[0].line, message: `an application needs a block of ${Object.keys(CHECKERS).join(', ')}` }];
  const { command, options, finding } = CHECKERS[language];
  // Inside the client's folder, so that imports find the client and the frameworks.
  const folder = mkdtempSync(join(APPS, 'document-'));
  try {
    for (const { name, text } of parts) {
      mkdirSync(dirname(join(folder, name)), { recursive: true });
      writeFileSync(join(folder, name), text);
    }
    writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify({ extends: '../tsconfig.json', compilerOptions: options, include: ['.', ...(language === 'vue' ? ['**/*.vue'] : [])] }));
    const { status, out } = await run(folder, command);
    const found = out.split('\n').flatMap((line) => {
      const { name, line: at, message } = finding.exec(line)?.groups ?? {};
      const part = parts.find((one) => name !== undefined && relative(folder, join(folder, name)).endsWith(one.name));
      return part ? [{ file, line: part.line + Number(at) - 1, message }] : [];
    });
    return status === 0 || found.length > 0 ? found : [{ file, line: parts[0].line, message: out.trim() }];
  } finally {
    rmSync(folder, { recursive: true });
  }
}

function run(cwd, [name, ...args]) {
  const child = spawn(join(SDK, 'node_modules/.bin', name), args, { cwd, stdio: ['ignore', 'pipe', 'pipe'] });
  let out = '';
  for (const output of [child.stdout, child.stderr]) output.on('data', (piece) => (out += piece));
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (status) => resolve({ status, out }));
  });
}
