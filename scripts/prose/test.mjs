// Tests prose.mjs: node --test scripts/prose/test.mjs
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { find } from './prose.mjs';

const rules = (text, isMarkdown = false) => find(text, isMarkdown).map(({ line, rule }) => `${line} ${rule}`);

test('banned phrases in comments are found', () => {
  assert.deepEqual(rules('/// Whom this request comes from.\nfn f() {}\n// Nobody is told.\n'), ['1 fragment', '3 people', '3 told']);
  assert.deepEqual(rules('let a = 1; // sent again at once\n'), ['1 again']);
});

test('only the first line of a comment can be a fragment', () => {
  assert.deepEqual(rules('/// Returns the limit.\n/// What is above it is dropped.\n'), []);
});

test('code, strings, URLs and quotations are no prose', () => {
  assert.deepEqual(rules('let nobody = "// somebody"; whoever();\nconst url = "http://nobody";\n/// Calls `nobody()`.\n'), []);
  assert.deepEqual(rules('Text.\n```sh\nnobody\n```\n| nobody |\nSee `nobody`.\n', true), []);
});

test('lines above the limit are found', () => {
  assert.deepEqual(rules(`// ${'a '.repeat(60)}\n`), ['1 length']);
  assert.deepEqual(rules(`${'a'.repeat(121)}\n`, true), ['1 length']);
  assert.deepEqual(rules(`let a = "${'a'.repeat(200)}";\n`), []);
});
