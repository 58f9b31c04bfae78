// Tests the runner of code blocks: node --test scripts/docs/test.mjs
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { PAGE, page } from './api.mjs';
import { checkApplication } from './applications.mjs';
import { blocks, matches } from './blocks.mjs';
import { documents, runDocument } from './run.mjs';
import { obstacle } from './shell.mjs';
import { check } from './types.mjs';

const fence = (language, code, ...directives) => `${directives.map((one) => `<!-- ${one} -->\n`).join('')}\`\`\`${language}\n${code}\n\`\`\`\n`;
const missing = obstacle();
const shell = { skip: missing && `documents cannot have a network of their own: ${missing}` };
const programs = { node: process.execPath };

test('blocks have lines, languages and directives', () => {
  const found = blocks(`# Title\n\n${fence('sh', 'true', 'background', 'not run: why: so')}\n- list\n\n  \`\`\`js\n  1;\n  \`\`\`\n`);
  assert.deepEqual(found, [
    { line: 6, language: 'sh', text: 'true\n', directives: { background: '', 'not run': 'why: so' } },
    { line: 12, language: 'js', text: '1;\n', directives: {} },
  ]);
  assert.throws(() => blocks('```sh\ntrue\n'), /line 1: this block has no end/);
});

test('promised output matches with gaps and literally', () => {
  assert.ok(matches('{"position":"…:1"}\n', '{"position":"5f0c12ab:1"}  \n'));
  assert.ok(matches('first\n...\nlast\n', 'first\n1\n2\nlast\n'));
  assert.ok(!matches('a.c', 'abc'));
  assert.ok(!matches('one', 'one\ntwo'));
});

test('broken command fails with file, line, command and output', shell, async () => {
  const text = `text\n\n${fence('sh', 'x=1\necho "printed $x"\nfalse\necho later')}${fence('sh', 'echo never')}`;
  const { failures } = await runDocument('a.md', text, { programs });
  assert.deepEqual(failures, ['a.md:6: `false`: exit code 1\n    printed 1']);
});

test('blocks of a document share a shell and a folder', shell, async () => {
  const text = [
    fence('js', "console.log('from a file', process.env.HOME === process.cwd());", 'file: folder/a.mjs'),
    fence('sh', 'name=folder/a.mjs'),
    fence('sh', 'node "$name"'),
    fence('text', 'from a file true', 'output'),
  ].join('\n');
  const { failures, ran } = await runDocument('a.md', text, { programs });
  assert.deepEqual([failures, ran], [[], 4]);
});

test('other output than promised fails', shell, async () => {
  const { failures } = await runDocument('a.md', `${fence('sh', 'echo 2')}${fence('text', '1', 'output')}`, { programs });
  assert.deepEqual(failures, ['a.md:6: the command above prints something else:\n    2']);
});

test('server in the background is awaited', shell, async () => {
  const serve = `node -e "setTimeout(() => require('http').createServer((_, answer) => answer.end('served')).listen(8080), 500)"`;
  const { failures } = await runDocument('a.md', `${fence('sh', serve, 'background')}${fence('sh', 'curl -s http://127.0.0.1:8080/')}${fence('text', 'served', 'output')}`, { programs });
  assert.deepEqual(failures, []);
  const silent = await runDocument('a.md', fence('sh', 'echo failed; exit 3', 'background'), { programs });
  assert.deepEqual(silent.failures, ['a.md:3: `the server does not listen`\n    failed']);
});

test('blocks that nobody runs fail', async () => {
  const { failures, notRun } = await runDocument('a.md', [fence('yaml', 'a: 1'), fence('sh', 'rm x', 'not run:'), fence('sh', 'x', 'not run: needs a cluster'), fence('json', '{"a"}'), fence('js', '1', 'fill: x.js')].join(''));
  assert.match(failures[0], /^a.md:2: a block of language yaml is not run/);
  assert.match(failures[1], /^a.md:6: a block that is not run needs a reason/);
  assert.match(failures[2], /^a.md:13: this is not JSON/);
  assert.match(failures[3], /^a.md:17: unknown directive: fill/);
  assert.equal(failures.length, 4);
  assert.equal(notRun[1], 'a.md:10: needs a cluster');
});

test('blocks without a shell are counted as skipped', async () => {
  const { skipped, ran } = await runDocument('a.md', `${fence('sh', 'false')}${fence('json', '1')}`, { shells: false });
  assert.deepEqual([skipped, ran], [1, 1]);
});

test('scripts are checked against the client', async () => {
  const text = [
    fence('ts', "import { millrace } from '@millrace/client';\nconst mr = millrace('http://x');\nshow(mr.state);", 'given: function show(...all: unknown[]): void'),
    fence('ts', "const mr = millrace('http://y');\nmr.nothing();\nmr.nothing(); // does not compile\nmr.close(); // does not compile"),
  ].join('');
  const { failures, programs } = await runDocument('a.md', text);
  assert.deepEqual(failures, []);
  const wrong = check(programs).map(({ file, line, message }) => `${file}:${line}: ${message.slice(0, 31)}`);
  assert.deepEqual(wrong, ["a.md:9: Property 'nothing' does not exi", "a.md:11: Unused '@ts-expect-error' direc"]);
});

test('every document of the repository is found', () => {
  const found = documents();
  for (const name of ['README.md', 'docs/reference/protocol.md', 'docs/tutorials/chat.md', 'sdk/typescript/README.md']) assert.ok(found.includes(name), name);
  assert.ok(!found.some((name) => name.includes('node_modules')));
});

test('the page of the HTTP API is made from the OpenAPI document', () => {
  assert.equal(readFileSync(PAGE, 'utf8'), page(), 'run: node scripts/docs/api.mjs');
});

test('an application that does not compile fails with its line', async () => {
  const vue = (expression) => fence('vue', `<script setup lang="ts">\nconst n = 1;\n</script>\n\n<template>\n  <p>{{ ${expression} }}</p>\n</template>`, 'application: src/App.vue');
  const react = (value) => fence('tsx', `export const App = () => {\n  const n: number = ${value};\n  return <p>{n}</p>;\n};`, 'application: src/App.tsx');
  const svelte = (value) => fence('svelte', `<script lang="ts">\n  const n: number = ${value};\n</script>\n\n<p>{n}</p>`, 'application: src/App.svelte');
  const wrong = async (text) => {
    const { application, failures } = await runDocument('a.md', text);
    return [...failures, ...(await checkApplication(application)).map(({ line }) => line)];
  };
  assert.deepEqual(await Promise.all([vue('n.x'), react("'1'"), svelte("'1'")].map(wrong)), [[8], [4], [4]]);
  assert.deepEqual(await wrong(fence('ts', '1;', 'application: src/a.ts')), [3]);
});
