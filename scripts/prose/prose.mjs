// Finds phrases that CONTRIBUTING.md, "Language" replaces, and lines that are too long, in comments and documents:
//
//   node scripts/prose/prose.mjs             compares with allowed.json; a file must not have more of anything than is allowed there
//   node scripts/prose/prose.mjs --write     lowers the allow-list to what is left; it never rises
//   node scripts/prose/prose.mjs --list FILE shows every finding of these files, allowed or not
//   node scripts/prose/prose.mjs --summary   counts what is allowed, by rule
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { LINE_MAX, RULES } from './rules.mjs';

const ALLOWED = new URL('allowed.json', import.meta.url);
const SOURCE = /\.(?:rs|ts|svelte|mjs|js|c|h)$/;

/** Files with text of ours: tracked, not generated, and not the rules themselves. */
function files() {
  const tracked = execFileSync('git', ['ls-files', '-co', '--exclude-standard'], { encoding: 'utf8' }).split('\n');
  return tracked.filter((file) => (SOURCE.test(file) || file.endsWith('.md')) && !/^(?:scripts\/prose|web\/pack|web\/single)\/|CHANGELOG\.md$/.test(file));
}

/** The comment in a line of source, if there is one, and the text of the line before it. */
function commentOf(line) {
  const whole = /^\s*(\/\/[/!]?|\/\*\*?|\*\/?|<!--|#)\s?(.*)$/.exec(line);
  if (whole) return whole[1] === '#' ? undefined : whole[2];
  // A `//` after code; not the one in a URL or a string.
  const after = /^(?:[^"'`/]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\/(?!\/))*\s\/\/\s(.*)$/.exec(line);
  return after?.[1];
}

/** The findings of a text: `{ line, rule, text }`. */
export function find(text, isMarkdown) {
  const found = [];
  let fence = false;
  let before;
  for (const [index, line] of text.split('\n').entries()) {
    if (isMarkdown && /^\s*```/.test(line)) fence = !fence;
    const prose = isMarkdown ? (fence || /^\s*(?:\||```|<)/.test(line) ? undefined : line) : commentOf(line);
    if (prose !== undefined) {
      const isFirst = before === undefined;
      for (const rule of RULES) {
        if (rule.kinds && !rule.kinds.includes(isMarkdown ? 'markdown' : 'comment')) continue;
        if (rule.first && !isFirst) continue;
        // What is quoted in backticks is code.
        if (rule.pattern.test(prose.replace(/`[^`]*`/g, '``'))) found.push({ line: index + 1, rule: rule.name, text: line.trim() });
      }
      const isWholeLine = isMarkdown || /^\s*(?:\/\/|\/?\*)/.test(line);
      if (isWholeLine && [...line].length > LINE_MAX && !/https?:\/\/\S{40}/.test(line)) found.push({ line: index + 1, rule: 'length', text: line.trim() });
    }
    before = prose;
  }
  return found;
}

const count = (found) => found.reduce((counts, { rule }) => ({ ...counts, [rule]: (counts[rule] ?? 0) + 1 }), {});

function main([option, ...names]) {
  if (option === '--list') {
    for (const file of names) for (const { line, rule, text } of find(readFileSync(file, 'utf8'), file.endsWith('.md'))) console.log(`${file}:${line}: ${rule}: ${text}`);
    return 0;
  }
  let allowed = {};
  try {
    allowed = JSON.parse(readFileSync(ALLOWED, 'utf8'));
  } catch (error) {
    if (error.code !== 'ENOENT' || option !== '--write') throw error;
    allowed = undefined;
  }
  const left = {};
  let failed = 0;
  for (const file of files()) {
    const found = find(readFileSync(file, 'utf8'), file.endsWith('.md'));
    const counts = count(found);
    for (const [rule, number] of Object.entries(counts)) {
      const may = allowed ? (allowed[file]?.[rule] ?? 0) : Infinity;
      if (number > may) {
        failed++;
        const use = RULES.find(({ name }) => name === rule)?.use ?? `at most ${LINE_MAX} characters`;
        console.error(`${file}: ${number} times "${rule}", ${may} allowed; write instead: ${use}`);
        for (const { line, text } of found.filter((one) => one.rule === rule)) console.error(`  line ${line}: ${text.slice(0, 140)}`);
      }
      (left[file] ??= {})[rule] = Math.min(number, may);
    }
  }
  const total = (list) => Object.values(list).flatMap(Object.values).reduce((sum, number) => sum + number, 0);
  if (option === '--write') writeFileSync(ALLOWED, `${JSON.stringify(left, null, 1)}\n`);
  else if (option === '--summary') {
    const rules = {};
    for (const counts of Object.values(left)) for (const [rule, number] of Object.entries(counts)) rules[rule] = (rules[rule] ?? 0) + number;
    console.log(rules);
  } else if (total(left) < total(allowed)) {
    failed++;
    console.error(`${total(allowed) - total(left)} fewer findings than allowed: lower the list with node scripts/prose/prose.mjs --write`);
  }
  if (failed === 0) console.log(`${total(left)} findings left, as allowed`);
  return failed ? 1 : 0;
}

if (import.meta.url === `file://${process.argv[1]}`) process.exit(main(process.argv.slice(2)));
