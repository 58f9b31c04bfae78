// Writes a software bill of materials (CycloneDX 1.5) of the binary, the client and the pages.
// Usage: node scripts/sbom.mjs FOLDER, or `make sbom`.
// Source: cyclonedx.org/docs/1.5/json; purl-spec, "cargo" and "npm".
import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const folder = process.argv[2] ?? 'target/sbom';
const run = (program, ...args) => JSON.parse(execFileSync(program, args, { encoding: 'utf8', maxBuffer: 1 << 28, stdio: ['ignore', 'pipe', 'ignore'] }));

mkdirSync(folder, { recursive: true });
write('millrace', crates('millrace-cli'));
for (const [name, part] of [['client', 'sdk/typescript'], ['web', 'web']]) {
  write(name, run('npm', '--prefix', part, 'sbom', '--sbom-format', 'cyclonedx', '--omit', 'dev'));
}

/** All that is compiled into a program of this workspace, or runs while it is compiled. */
function crates(root) {
  const host = /^host: (.*)$/m.exec(execFileSync('rustc', ['-vV'], { encoding: 'utf8' }))[1];
  const metadata = run('cargo', 'metadata', '--locked', '--format-version', '1', '--filter-platform', host);
  const packages = new Map(metadata.packages.map((one) => [one.id, one]));
  const nodes = new Map(metadata.resolve.nodes.map((node) => [node.id, node]));
  const checksums = new Map(
    [...readFileSync('Cargo.lock', 'utf8').matchAll(/name = "(.+)"\nversion = "(.+)"\nsource = ".+"\nchecksum = "(.+)"/g)].map(
      ([, name, version, checksum]) => [`${name}@${version}`, checksum],
    ),
  );
  const first = metadata.packages.find((one) => one.name === root).id;
  const found = new Map();
  const visit = (id) => {
    if (found.has(id)) return;
    const needed = nodes.get(id).deps.filter((dep) => dep.dep_kinds.some((kind) => kind.kind !== 'dev')).map((dep) => dep.pkg);
    found.set(id, needed);
    needed.forEach(visit);
  };
  visit(first);
  const purl = (id) => `pkg:cargo/${packages.get(id).name}@${packages.get(id).version}`;
  const component = (id) => {
    const { name, version, license, source, repository } = packages.get(id);
    if (!license) throw new Error(`${name} ${version} names no licence`);
    const hash = checksums.get(`${name}@${version}`);
    if (source && !hash) throw new Error(`${name} ${version} has no checksum in Cargo.lock`);
    return {
      type: 'library', 'bom-ref': purl(id), name, version, purl: purl(id),
      licenses: [{ expression: license.replaceAll('/', ' OR ') }],
      ...(hash && { hashes: [{ alg: 'SHA-256', content: hash }] }),
      ...(repository && { externalReferences: [{ type: 'vcs', url: repository }] }),
    };
  };
  return {
    bomFormat: 'CycloneDX', specVersion: '1.5', serialNumber: `urn:uuid:${randomUUID()}`, version: 1,
    metadata: { timestamp: new Date().toISOString(), component: { ...component(first), type: 'application', name: 'millrace' } },
    components: [...found.keys()].filter((id) => id !== first).map(component),
    dependencies: [...found].map(([id, needed]) => ({ ref: purl(id), dependsOn: needed.map(purl) })),
  };
}

function write(name, bom) {
  const file = join(folder, `${name}.cdx.json`);
  writeFileSync(file, JSON.stringify(bom, null, 2));
  console.log(`${file}: ${bom.components.length} components`);
}
