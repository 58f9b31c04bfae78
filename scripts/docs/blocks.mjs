// Code blocks of a document, with the directives in comments above them.

const DIRECTIVE = /^\s*<!-- (.*?) -->\s*$/;
const FENCE = /^(\s*)(`{3,})(\S*)/;

/**
 * Returns the code blocks of a document: { line, language, text, directives }.
 *
 * `line`: of the first line of the code, counted from 1. `directives`: of the comments directly above the block, such
 * as { file: 'chat.html' } or { background: '' }.
 */
export function blocks(document) {
  const lines = document.split('\n');
  const found = [];
  let directives = {};
  for (let i = 0; i < lines.length; i++) {
    const [, comment] = DIRECTIVE.exec(lines[i]) ?? [];
    const [, indent, ticks, language] = FENCE.exec(lines[i]) ?? [];
    if (comment) {
      const [name, ...value] = comment.split(':');
      directives[name.trim()] = value.join(':').trim();
      continue;
    }
    if (ticks) {
      const first = i + 1;
      while (++i < lines.length && lines[i].trim() !== ticks);
      if (i === lines.length) throw new Error(`line ${first}: this block has no end`);
      const text = lines.slice(first, i).map((line) => `${line.startsWith(indent) ? line.slice(indent.length) : line}\n`);
      found.push({ line: first + 1, language, text: text.join(''), directives });
    }
    directives = {};
  }
  return found;
}

/** Returns true if `printed` is what a document promises. `…` and `...` match anything, also several lines. */
export function matches(promised, printed) {
  const normal = (text) => text.split('\n').map((line) => line.trimEnd()).join('\n').trim();
  const literal = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
  const pattern = normal(promised).split(/…|\.\.\./).map(literal).join('[^]*?');
  return new RegExp(`^${pattern}$`).test(normal(printed));
}
