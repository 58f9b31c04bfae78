// Makes docs/reference/api.md from the OpenAPI document of the server: node scripts/docs/api.mjs
//
// scripts/docs/test.mjs fails if the page differs from what this script makes.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const ROOT = join(import.meta.dirname, '../..');
const DOCUMENT = join(ROOT, 'crates/server/src/openapi.json');
export const PAGE = join(ROOT, 'docs/reference/api.md');
const LINE_MAX = 120;
const METHODS = ['get', 'head', 'post', 'patch', 'delete', 'options'];

/** Breaks a paragraph into lines. Code in backticks is not broken. */
function wrap(text) {
  const lines = [''];
  for (const word of text.match(/(?:`[^`]*`|\S)+/g) ?? []) {
    const last = lines.at(-1);
    if (last && last.length + 1 + word.length > LINE_MAX) lines.push(word);
    else lines[lines.length - 1] = last ? `${last} ${word}` : word;
  }
  return lines.join('\n');
}

const cell = (text) => text.replaceAll('|', '\\|').replaceAll('\n', ' ');

function table(head, rows) {
  return [head, head.map(() => '---'), ...rows].map((row) => `| ${row.map(cell).join(' | ')} |`).join('\n');
}

/** Returns the Markdown of the page. */
export function page(document = JSON.parse(readFileSync(DOCUMENT, 'utf8'))) {
  const resolve = (value) => (value?.$ref ? value.$ref.slice(2).split('/').reduce((at, name) => at[name], document) : value);
  const named = (schema) => schema.$ref?.split('/').at(-1);

  /** Returns the type of a value in a few words. */
  function typeOf(schema) {
    if (named(schema)) return `[${named(schema)}](#${named(schema).toLowerCase()})`;
    if (schema.const !== undefined) return `\`${schema.const}\``;
    if (schema.enum) return schema.enum.map((value) => `\`${value}\``).join(', ');
    if (schema.oneOf) return schema.oneOf.map(typeOf).join(' or ');
    if (schema.type === 'array') return `list of ${schema.items ? typeOf(schema.items) : 'values'}`;
    if (schema.type === 'object' && schema.properties) return `\`{${Object.keys(schema.properties).join(', ')}}\``;
    const { minimum, maximum } = schema;
    const range = maximum === undefined ? '' : `, ${minimum ?? ''} to ${maximum}`;
    return `${schema.type ?? 'any value'}${range}`;
  }

  const withDefault = (schema) => (schema.default === undefined ? '' : ` Default: \`${schema.default}\`.`);

  function fields(schema) {
    const rows = Object.entries(schema.properties).map(([name, value]) => [
      `\`${name}\`${schema.required?.includes(name) ? '' : ' (optional)'}`,
      typeOf(value),
      `${resolve(value).description ?? ''}${withDefault(value)}`.trim(),
    ]);
    return table(['field', 'type', 'meaning'], rows);
  }

  function operation(path, method, item) {
    const { summary, description, parameters = [], requestBody, responses, security, 'x-codes': codes } = item[method];
    const parts = [`### ${summary}`, `\`${method.toUpperCase()} ${path}\``];
    if (description) parts.push(wrap(description));
    const all = [...(item.parameters ?? []), ...parameters].map(resolve);
    if (all.length > 0) {
      const rows = all.map(({ name, in: place, required, description, schema }) => [
        `\`${name}\`${required ? '' : ' (optional)'}`,
        place,
        typeOf(schema),
        `${description}${withDefault(schema)}`,
      ]);
      parts.push(table(['parameter', 'in', 'type', 'meaning'], rows));
    }
    for (const [media, { schema, example }] of Object.entries(requestBody?.content ?? {})) {
      const type = named(schema) ? `: ${typeOf(schema)}` : '';
      parts.push(`Body \`${media}\`${type}${requestBody.required ? '' : ' (optional)'}`);
      if (example !== undefined && media === 'application/json') parts.push(json(example));
    }
    const own = Object.entries(responses).filter(([, response]) => !response.$ref);
    const rows = own.map(([status, { description, content = {} }]) => {
      const types = Object.entries(content).map(([media, { schema }]) => `\`${media}\`${named(schema) ? ` ${typeOf(schema)}` : ''}`);
      return [status, description, types.join(', ')];
    });
    parts.push(table(['status', 'meaning', 'body'], rows));
    for (const [, { content = {} }] of own) {
      const example = content['application/json']?.example;
      if (example !== undefined) parts.push(json(example));
    }
    if (codes.length > 0) parts.push(wrap(`Error codes: ${codes.map((code) => `\`${code}\``).join(', ')}.`));
    if (security?.length === 0) parts.push('No token is needed.');
    return parts.join('\n\n');
  }

  const operations = Object.entries(document.paths).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => ({ path, method, item, tag: item[method].tags[0] })),
  );
  // The headers of a page are no request that anyone looks up.
  const shown = operations.filter(({ method }) => method !== 'head');
  const parts = [
    '# HTTP API',
    '<!-- Made from crates/server/src/openapi.json by scripts/docs/api.mjs: change the document, then run the script. -->',
    wrap(
      'This page lists every HTTP request of a server with its parameters, answers and error codes. It is made from the OpenAPI 3.1 document that every server has at `/openapi.json`; generators of clients and tools such as Postman read that document. [protocol.md](protocol.md) explains messages, streams, WebSockets and sessions, and [admin.md](admin.md) the requests of operators.',
    ),
    ...document.info.description.split('\n\n').slice(1).map(wrap),
  ];
  for (const { name, description } of document.tags) {
    parts.push(`## ${name[0].toUpperCase()}${name.slice(1)}`, wrap(description));
    parts.push(...shown.filter(({ tag }) => tag === name).map(({ path, method, item }) => operation(path, method, item)));
  }
  parts.push('## Values');
  for (const [name, schema] of Object.entries(document.components.schemas)) {
    parts.push(`### ${name}`);
    if (schema.description) parts.push(wrap(schema.description));
    parts.push(schema.properties ? fields(schema) : wrap(`${typeOf(schema)}.`));
  }
  return `${parts.join('\n\n')}\n`;
}

function json(value) {
  return `\`\`\`json\n${JSON.stringify(value, null, 2)}\n\`\`\``;
}

if (process.argv[1] === import.meta.filename) writeFileSync(PAGE, page());
