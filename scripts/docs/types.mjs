// Checks the JavaScript and TypeScript of documents with the compiler, against the sources of the client.
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const ROOT = join(import.meta.dirname, '../..');
const SDK = join(ROOT, 'sdk/typescript');
const IMPORT = /^\s*import\s+(type\s+)?\{([^}]*)\}\s+from\s+'([^']+)';.*$/;

/**
 * Returns one program from the blocks of a document: each block is a scope inside the previous one, because later
 * blocks use the names of earlier ones and may redefine them. `lines[i]` is the line of the document of line i of the
 * program.
 */
export function program(blocks) {
  const imports = new Map();
  const text = [];
  const lines = [];
  const put = (line, number) => (text.push(line), lines.push(number));
  for (const { directives, line } of blocks) if (directives.given) for (const one of directives.given.split('; ')) put(`declare ${one};`, line);
  for (const block of blocks) {
    put('{', block.line);
    for (const [index, line] of block.text.split('\n').entries()) {
      const [, type, names, module] = IMPORT.exec(line) ?? [];
      if (!module) {
        if (line.endsWith('// does not compile')) put('// @ts-expect-error', block.line + index);
        put(line, block.line + index);
        continue;
      }
      for (const name of names.split(',').map((one) => one.trim()).filter(Boolean)) imports.set(`${type ?? ''}${name}`, { module, line: block.line + index });
    }
  }
  put('}'.repeat(blocks.length), blocks.at(-1).line);
  const heads = [...imports].map(([name, { module, line }]) => ({ text: `import { ${name} } from '${module}';`, line }));
  return { text: `${[...heads.map((head) => head.text), ...text, 'export {};'].join('\n')}\n`, lines: [...heads.map((head) => head.line), ...lines, 0] };
}

/**
 * Checks programs: [{ file, strict, text, lines }]. Returns what is wrong: [{ file, line, message }].
 *
 * `strict`: false for JavaScript, whose parameters have no types.
 */
export function check(programs) {
  if (programs.length === 0) return [];
  const ts = createRequire(join(SDK, 'package.json'))('typescript');
  return [true, false].flatMap((strict) => {
    const some = programs.filter((one) => one.strict === strict);
    if (some.length === 0) return [];
    const options = {
      target: ts.ScriptTarget.ESNext, module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler,
      lib: ['lib.esnext.d.ts', 'lib.dom.d.ts', 'lib.dom.iterable.d.ts', 'lib.dom.asynciterable.d.ts'].filter((lib) => existsSync(join(ts.getDefaultLibFilePath({}), '..', lib))),
      types: [], noEmit: true, skipLibCheck: true, strict, allowJs: !strict, checkJs: !strict, allowUnreachableCode: true,
      paths: { '@millrace/client': [join(SDK, 'dist/index.d.ts')], '@millrace/client/*': [join(SDK, 'dist/*.d.ts'), join(SDK, 'dist/transports/*.d.ts'), join(SDK, 'dist/*/index.d.ts')] },
    };
    const sources = new Map(some.map((one, index) => [join(SDK, `document-${index}.${strict ? 'ts' : 'js'}`), one]));
    const host = ts.createCompilerHost(options);
    const { fileExists, readFile, getSourceFile } = host;
    host.fileExists = (name) => sources.has(name) || fileExists(name);
    host.readFile = (name) => sources.get(name)?.text ?? readFile(name);
    host.getSourceFile = (name, ...rest) => (sources.has(name) ? ts.createSourceFile(name, sources.get(name).text, ts.ScriptTarget.ESNext) : getSourceFile.call(host, name, ...rest));
    const checked = ts.createProgram([...sources.keys()], options, host);
    return ts.getPreEmitDiagnostics(checked).map(({ file, start, messageText }) => {
      const source = sources.get(file?.fileName);
      const line = source ? source.lines[file.getLineAndCharacterOfPosition(start).line] : 0;
      return { file: source?.file ?? file?.fileName ?? 'tsc', line, message: ts.flattenDiagnosticMessageText(messageText, '\n') };
    });
  });
}
