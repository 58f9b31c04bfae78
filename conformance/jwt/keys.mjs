// Creates keys of every type and a configuration that trusts them: node keys.mjs FOLDER.
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';

const folder = process.argv[2];
const pairs = {
  rsa: generateKeyPairSync('rsa', { modulusLength: 2048 }),
  ec: generateKeyPairSync('ec', { namedCurve: 'P-256' }),
  ed: generateKeyPairSync('ed25519'),
  // Keys that the server does not trust.
  strangerRsa: generateKeyPairSync('rsa', { modulusLength: 2048 }),
  strangerEc: generateKeyPairSync('ec', { namedCurve: 'P-256' }),
  strangerEd: generateKeyPairSync('ed25519'),
};
const secret = randomBytes(32).toString('base64url');
const pem = (key) => key.export({ type: key.type === 'public' ? 'spki' : 'pkcs8', format: 'pem' });
const jwk = (kid, alg) => ({ ...pairs[kid].publicKey.export({ format: 'jwk' }), kid, alg, use: 'sig' });
writeFileSync(`${folder}/set.json`, JSON.stringify({ keys: [jwk('rsa', 'RS256'), jwk('ec', 'ES256'), jwk('ed', 'EdDSA')] }));
const keys = Object.fromEntries(Object.entries(pairs).map(([name, pair]) => [name, { public: pem(pair.publicKey), private: pem(pair.privateKey) }]));
writeFileSync(`${folder}/keys.json`, JSON.stringify({ secret, keys }), { mode: 0o600 });
writeFileSync(
  `${folder}/millrace.toml`,
  `[auth]\nsecret = "${secret}"\nkeys = ["${folder}/set.json"]\nissuer = "https://issuer.example"\naudience = "millrace"\n`,
  { mode: 0o600 },
);
