// Moves the scripts of pages into files, because the server's policy for content allows no scripts in pages.
import { createHash } from 'node:crypto';

/**
 * Returns `files` ({ name, path, content }) with each script of a page replaced by a script file in `folder`. Fails if
 * a page has a handler of an event or a script that the policy would forbid.
 */
export function scriptsInFiles(files, folder) {
  const scripts = new Map();
  const moved = files.map((file) => (file.name.endsWith('.html') ? { ...file, content: Buffer.from(move(file)) } : file));
  return [...moved, ...scripts.values()];

  function move({ name, content }) {
    const page = content.toString().replace(/<script\b([^>]*)>(.*?)<\/script>/gs, (tag, attributes, script) => {
      // Data, and scripts that are files already.
      if (/\bsrc=|type="application\/json"/.test(attributes)) return tag;
      const hash = createHash('sha256').update(script).digest('hex').slice(0, 8);
      const path = `${folder}/page.${hash}.js`;
      scripts.set(path, { name: `page.${hash}.js`, path, content: Buffer.from(script) });
      return `<script${attributes} src="${path}"></script>`;
    });
    // Text contains `<` only as an entity, so these are tags.
    const handler = /<[a-z][^>]*\son[a-z]+=/i.exec(page) ?? /<[a-z][^>]*(?:href|src)="javascript:/i.exec(page);
    if (handler) throw new Error(`${name}: the policy of the server forbids ${handler[0].slice(0, 100)}`);
    return page;
  }
}
