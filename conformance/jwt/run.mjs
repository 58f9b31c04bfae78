// Sends tokens that the server must refuse, and some that it must accept, to every endpoint: node run.mjs FOLDER
// HOST:PORT. FOLDER has the files that keys.mjs created.
// Sources: RFC 8725 (best current practices), RFC 7515, section 10 and RFC 7519, section 11 (security considerations),
// RFC 8032, section 5.1.7.
import { createHash, createHmac, createPrivateKey, createPublicKey, createSign, sign as signRaw } from 'node:crypto';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';

const require = createRequire(new URL('../../sdk/typescript/package.json', import.meta.url));
const { SignJWT, UnsecuredJWT } = require('jose');
const { WebSocket } = require('ws');
const [folder, authority] = process.argv.slice(2);
const { secret, keys } = JSON.parse(readFileSync(`${folder}/keys.json`, 'utf8'));
const key = (name) => createPrivateKey(keys[name].private);
const hmacKey = Buffer.from(secret);
const PATIENCE_MS = 10_000;

/** Number of requests to the trap server. The server must never fetch keys from a URL in a token. */
let visits = 0;
const trap = http.createServer((_, response) => {
  visits++;
  const jwk = (name, kid) => ({ ...createPublicKey(keys[name].public).export({ format: 'jwk' }), kid });
  response.setHeader('content-type', 'application/json').end(JSON.stringify({ keys: [jwk('strangerRsa', 'trap'), jwk('strangerEc'), jwk('strangerEd')] }));
});
await new Promise((resolve) => trap.listen(0, '127.0.0.1', resolve));
const trapUrl = `http://127.0.0.1:${trap.address().port}/keys.json`;

// --- tokens --------------------------------------------------------------------------------------------------------

const now = Math.floor(Date.now() / 1000);
const everything = { subscribe: ['#'], publish: ['#'], presence: ['#'], history: ['#'] };
/** Claims that the server accepts if the token is signed correctly. */
const good = { sub: 'somebody', iss: 'https://issuer.example', aud: 'millrace', iat: now, exp: now + 600, millrace: everything };
const without = (name) => Object.fromEntries(Object.entries(good).filter(([each]) => each !== name));

const b64 = (value) => Buffer.from(typeof value === 'string' || Buffer.isBuffer(value) ? value : JSON.stringify(value)).toString('base64url');
/** Signs a token with `jose`. */
const signed = (claims, alg = 'HS256', by = hmacKey, header = {}) => new SignJWT(claims).setProtectedHeader({ alg, ...header }).sign(by);
/**
 * Builds a token that a library would refuse to build: uses header and claims unchanged, even if they are plain text.
 */
const raw = (header, claims, sign) => {
  const message = `${b64(header)}.${b64(claims)}`;
  return `${message}.${b64(sign(message))}`;
};
const hmac = (by, hash = 'sha256') => (message) => createHmac(hash, by).update(message).digest();
const honest = hmac(hmacKey);
const rs256 = (name) => (message) => createSign('sha256').update(message).sign(key(name));
const nothing = () => '';
const bytes = (...parts) => () => Buffer.concat(parts.map((part) => Buffer.from(part)));

/** Orders of the base points of P-256 and Ed25519. */
const P256_ORDER = Buffer.from('ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551', 'hex');
const ED25519_ORDER = 2n ** 252n + 27742317777372353535851937790883648493n;
const littleEndian = (buffer) => BigInt(`0x${Buffer.from(buffer).reverse().toString('hex')}`);
/** Returns the signature with S + L instead of S, which a verifier must refuse. */
const malleated = (message) => {
  const signature = signRaw(null, Buffer.from(message), key('ed'));
  const s = littleEndian(signature.subarray(32)) + ED25519_ORDER;
  return Buffer.concat([signature.subarray(0, 32), Buffer.from(s.toString(16).padStart(64, '0'), 'hex').reverse()]);
};

const whole = await signed(good);
const [head, body, signature] = whole.split('.');
const flipped = Buffer.from(signature, 'base64url');
flipped[0] ^= 1;
const other = (await signed({ ...good, sub: 'another' })).split('.');
const publicDer = (name) => createPublicKey(keys[name].public).export({ type: 'spki', format: 'der' });
const publicJwk = (name) => createPublicKey(keys[name].public).export({ format: 'jwk' });
const stranger = publicJwk('strangerRsa');

const accepted = {
  'HS256': whole,
  'RS256': await signed(good, 'RS256', key('rsa')),
  'RS256 by its name': await signed(good, 'RS256', key('rsa'), { kid: 'rsa' }),
  'ES256': await signed(good, 'ES256', key('ec')),
  'ES256 by its name': await signed(good, 'ES256', key('ec'), { kid: 'ec' }),
  'EdDSA': await signed(good, 'EdDSA', key('ed')),
  'EdDSA by its name': await signed(good, 'EdDSA', key('ed'), { kid: 'ed' }),
  'several audiences': await signed({ ...good, aud: ['other', 'millrace'] }),
  'typ JWT': await signed(good, 'HS256', hmacKey, { typ: 'JWT' }),
  'typ at+jwt': await signed(good, 'HS256', hmacKey, { typ: 'at+jwt' }),
  'good since a second': await signed({ ...good, nbf: now - 1 }),
};

const refused = {};
const refuse = (name, token) => (refused[name] = token);
// No signature. RFC 8725, section 3.1 and 3.2.
refuse('alg none, of a library', new UnsecuredJWT(good).encode());
for (const alg of ['none', 'None', 'NONE', 'nOnE', 'none ', ' none', 'none\0', '', 'HS256 ', 'hs256', 'Hs256', null, 0, false, [], ['HS256'], {}]) {
  refuse(`alg ${JSON.stringify(alg)} without a signature`, raw({ alg }, good, nothing));
  refuse(`alg ${JSON.stringify(alg)} with the secret's signature`, raw({ alg }, good, honest));
}
refuse('no alg at all', raw({ typ: 'JWT' }, good, honest));
refuse('alg twice, none first', raw('{"alg":"none","alg":"HS256"}', good, honest));
refuse('alg twice, none last', raw('{"alg":"HS256","alg":"none"}', good, honest));
for (const alg of ['HS256', 'RS256', 'ES256', 'EdDSA']) refuse(`${alg} with an empty signature`, raw({ alg }, good, nothing));
// A public key used as an HMAC secret. RFC 8725, section 3.1.
for (const name of ['rsa', 'ec', 'ed']) {
  const pem = keys[name].public;
  const forms = { PEM: pem, 'PEM without its last line break': pem.trim(), 'PEM with CR LF': pem.replaceAll('\n', '\r\n'), DER: publicDer(name), JWK: JSON.stringify(publicJwk(name)) };
  for (const [form, by] of Object.entries(forms)) {
    refuse(`HS256 with the public ${name} key, ${form}`, raw({ alg: 'HS256' }, good, hmac(by)));
    refuse(`HS256 with the public ${name} key by its name, ${form}`, raw({ alg: 'HS256', kid: name }, good, hmac(by)));
  }
  refuse(`HS256 with the ${name} key's raw bytes`, raw({ alg: 'HS256', kid: name }, good, hmac(Buffer.from(publicJwk(name).n ?? publicJwk(name).x, 'base64url'))));
}
refuse('HS256 with the key set', raw({ alg: 'HS256' }, good, hmac(readFileSync(`${folder}/set.json`))));
// Other algorithms, and algorithms that do not match the key.
for (const [alg, hash] of [['HS384', 'sha384'], ['HS512', 'sha512']]) refuse(`${alg} with the secret`, raw({ alg }, good, hmac(hmacKey, hash)));
for (const alg of ['RS384', 'RS512', 'PS256', 'PS512']) refuse(`${alg} with the RSA key`, await signed(good, alg, key('rsa')));
refuse('RS256 that names the EC key', await signed(good, 'RS256', key('rsa'), { kid: 'ec' }));
refuse('ES256 that names the RSA key', await signed(good, 'ES256', key('ec'), { kid: 'rsa' }));
refuse('RS256 with the secret', raw({ alg: 'RS256' }, good, honest));
refuse('ES256 with a signature of RSA', raw({ alg: 'ES256' }, good, rs256('rsa')));
refuse('HS256 that names the RSA key', await signed(good, 'HS256', hmacKey, { kid: 'rsa' }));
refuse('RS256 of a stranger', await signed(good, 'RS256', key('strangerRsa')));
refuse('RS256 of a stranger that names ours', await signed(good, 'RS256', key('strangerRsa'), { kid: 'rsa' }));
refuse('ES256 of a stranger', await signed(good, 'ES256', key('strangerEc')));
refuse('EdDSA of a stranger', await signed(good, 'EdDSA', key('strangerEd')));
// Guessed secrets.
for (const guess of ['', 'secret', 'your-256-bit-secret', '\0'.repeat(32), secret.slice(0, -1), `${secret} `, secret.toLowerCase()]) {
  refuse(`HS256 with the secret ${JSON.stringify(guess === secret.slice(0, -1) ? 'cut short' : guess.length > 34 ? 'in other words' : guess)} ${guess.length}`, raw({ alg: 'HS256' }, good, hmac(guess)));
}
// Changed and malformed signatures.
refuse('a bit of the signature', `${head}.${body}.${b64(flipped)}`);
refuse('a signature that is too short', `${head}.${body}.${b64(Buffer.from(signature, 'base64url').subarray(0, 31))}`);
refuse('a signature that is too long', `${head}.${body}.${b64(Buffer.concat([Buffer.from(signature, 'base64url'), Buffer.from([0])]))}`);
refuse('a hash instead of a signature', raw({ alg: 'HS256' }, good, (message) => createHash('sha256').update(message).digest()));
refuse("another token's signature", `${head}.${body}.${other[2]}`);
refuse("another token's claims", `${head}.${other[1]}.${signature}`);
refuse("another token's header", `${b64({ alg: 'HS256', typ: 'JWT' })}.${body}.${signature}`);
for (const [what, r, s] of [['0 and 0', '', ''], ['0 and 1', '', '01'], ['1 and 0', '01', ''], ['the order twice', P256_ORDER, P256_ORDER]]) {
  const number = (value) => Buffer.concat([Buffer.alloc(32), Buffer.from(value, 'hex')]).subarray(-32);
  refuse(`ES256 of ${what}`, raw({ alg: 'ES256' }, good, bytes(number(r), number(s))));
  refuse(`ES256 of ${what} by the key's name`, raw({ alg: 'ES256', kid: 'ec' }, good, bytes(number(r), number(s))));
}
refuse('ES256 in DER', raw({ alg: 'ES256' }, good, (message) => createSign('sha256').update(message).sign(key('ec'))));
refuse('ES256 of half the bytes', raw({ alg: 'ES256' }, good, bytes(Buffer.alloc(32))));
refuse('EdDSA of zeros', raw({ alg: 'EdDSA' }, good, bytes(Buffer.alloc(64))));
refuse('EdDSA with S + L', raw({ alg: 'EdDSA' }, good, malleated));
for (const value of [0, 1]) refuse(`RS256 of ${value}`, raw({ alg: 'RS256' }, good, bytes(Buffer.alloc(255), [value])));
refuse('RS256 with a byte more', raw({ alg: 'RS256' }, good, (message) => Buffer.concat([Buffer.from([0]), rs256('rsa')(message)])));
// Keys inside or referenced by the token. RFC 8725, section 3.10.
const asStranger = (header) => raw({ alg: 'RS256', ...header }, good, rs256('strangerRsa'));
refuse('jwk', asStranger({ jwk: stranger }));
refuse('jwk that is named like ours', asStranger({ kid: 'rsa', jwk: { ...stranger, kid: 'rsa' } }));
refuse('jku', asStranger({ jku: trapUrl, kid: 'trap' }));
refuse('jku, without a name', asStranger({ jku: trapUrl }));
refuse('x5u', asStranger({ x5u: trapUrl }));
refuse('x5c', asStranger({ x5c: [publicDer('strangerRsa').toString('base64')] }));
refuse('kid that is a URL', asStranger({ kid: trapUrl }));
refuse('iss that is a URL', await signed({ ...good, iss: trapUrl.replace('/keys.json', '') }, 'RS256', key('strangerRsa'), { kid: 'trap' }));
for (const kid of ['../../../../../../dev/null', '/dev/null', `${folder}/set.json`, "x' UNION SELECT '' -- ", '$(true)', '| true', '', '\0', 'x'.repeat(5000), 0, null, ['rsa'], { rsa: 1 }]) {
  const what = JSON.stringify(kid).slice(0, 40).replace(folder, '');
  refuse(`kid ${what}, signed with nothing`, raw({ alg: 'HS256', kid }, good, hmac('')));
  refuse(`kid ${what}, signed by a stranger`, raw({ alg: 'RS256', kid }, good, rs256('strangerRsa')));
}
// Critical extensions that the server does not support. RFC 7515, section 4.1.11.
refuse('crit', raw({ alg: 'HS256', crit: ['x'], x: 1 }, good, honest));
refuse('crit of nothing', raw({ alg: 'HS256', crit: [] }, good, honest));
refuse('claims that are not encoded (b64)', `${b64({ alg: 'HS256', b64: false, crit: ['b64'] })}.${JSON.stringify(good)}.${b64(honest(`${b64({ alg: 'HS256', b64: false, crit: ['b64'] })}.${JSON.stringify(good)}`))}`);
refuse('another kind of token', raw({ alg: 'HS256', typ: 'dpop+jwt' }, good, honest));
refuse('typ of an id token for others', raw({ alg: 'HS256', typ: 'secevent+jwt' }, good, honest));
// Expiry and validity times.
refuse('expired an hour ago', await signed({ ...good, exp: now - 3600 }));
refuse('expired a minute ago', await signed({ ...good, exp: now - 60 }));
refuse('never expires', await signed(without('exp')));
refuse('expires in a thousand years', await signed({ ...good, exp: now + 31_557_600_000 }));
refuse('good from tomorrow', await signed({ ...good, nbf: now + 86_400, exp: now + 90_000 }));
for (const time of ['0', '-1', '-1e300', '1e400', '1e300', `"${now + 600}"`, 'true', '[]', `[${now + 600}]`, 'null', '"never"']) {
  refuse(`exp ${time}`, raw({ alg: 'HS256' }, JSON.stringify({ ...good, exp: '#' }).replace('"#"', time), honest));
}
for (const time of ['1e300', `"${now}"`, 'true', '[]']) refuse(`nbf ${time}`, raw({ alg: 'HS256' }, JSON.stringify({ ...good, nbf: '#' }).replace('"#"', time), honest));
refuse('exp twice, the first is over', raw({ alg: 'HS256' }, JSON.stringify(good).replace('{', '{"exp":1,'), honest));
refuse('exp twice, the last is over', raw({ alg: 'HS256' }, JSON.stringify(good).replace(/\}$/, ',"exp":1}'), honest));
// Issuer, audience and subject.
for (const [name, values] of [['iss', ['https://other.example', 'https://issuer.example/', 'HTTPS://issuer.example', '', ['https://issuer.example'], 1]], ['aud', ['other', 'Millrace', 'millrace ', '', [], ['other'], { millrace: 1 }, 1]]]) {
  refuse(`no ${name}`, await signed(without(name)));
  for (const value of values) refuse(`${name} ${JSON.stringify(value)}`, raw({ alg: 'HS256' }, { ...good, [name]: value }, honest));
}
for (const sub of ['', 'x'.repeat(300), 1, ['somebody'], { a: 1 }]) refuse(`sub ${JSON.stringify(sub).slice(0, 20)}`, raw({ alg: 'HS256' }, { ...good, sub }, honest));
// Malformed tokens.
for (const claims of ['', '[]', 'null', '"text"', '1', '{', `${JSON.stringify(good)}x`, `[${JSON.stringify(good)}]`]) refuse(`claims ${claims.slice(0, 12)}`, raw({ alg: 'HS256' }, claims, honest));
refuse('claims that are not UTF-8', raw({ alg: 'HS256' }, Buffer.from([0x7b, 0xff, 0x7d]), honest));
refuse('claims of another encoding', raw({ alg: 'HS256' }, Buffer.from(JSON.stringify(good), 'utf16le'), honest));
for (const header of ['', '[]', 'null', '{', '[['.repeat(1000), `{"alg":"HS256","x":${'['.repeat(2000)}`]) refuse(`header ${header.slice(0, 20)} ${header.length}`, raw(header, good, honest));
refuse('two parts', `${head}.${body}`);
refuse('two parts and a dot', `${head}.${body}.`);
refuse('four parts', `${whole}.${signature}`);
refuse('five parts, as if encrypted', `${b64({ alg: 'dir', enc: 'A256GCM' })}..${body}.${signature}.${signature}`);
refuse('dots', '....');
refuse('one dot', '.');
refuse('two dots', '..');
refuse('the claims alone', body);
refuse('another alphabet', whole.replace(/\.([^.]*)\./, (_, claims) => `.${claims}+/.`));
refuse('padding', `${head}.${body}=.${signature}`);
refuse('JSON instead of parts', JSON.stringify({ payload: body, protected: head, signature }));
// Tokens that are too large.
for (const bytes of [9_000, 40_000, 200_000]) refuse(`${bytes} bytes`, await signed({ ...good, filling: 'x'.repeat(bytes * 0.75) }));
for (const bytes of [9_000, 40_000]) refuse(`${bytes} bytes of signature`, `${head}.${body}.${'A'.repeat(bytes)}`);

// --- endpoints -----------------------------------------------------------------------------------------------------

/** Returns the status of the answer: 101 for a WebSocket, which is then closed. */
function status(method, path, headers, text) {
  return new Promise((resolve, reject) => {
    const request = http.request(`http://${authority}${path}`, { method, headers, agent: false, timeout: PATIENCE_MS });
    request.on('upgrade', (_, socket) => (socket.destroy(), resolve(101)));
    request.on('response', (response) => (response.destroy(), resolve(response.statusCode)));
    request.on('timeout', () => request.destroy(new Error('no answer')));
    // The server may refuse a request head that is too large before the client has sent all of it.
    request.on('error', (error) => (error.code === 'ECONNRESET' || error.code === 'EPIPE' ? resolve(431) : reject(error)));
    request.end(text);
  });
}

const upgrade = { connection: 'Upgrade', upgrade: 'websocket', 'sec-websocket-version': '13', 'sec-websocket-key': 'dGhlIHNhbXBsZSBub25jZQ==' };
const bearer = (token) => ({ authorization: `Bearer ${token}` });
const subprotocols = (token) => ({ ...upgrade, 'sec-websocket-protocol': `millrace.v1+json, bearer.${token}` });
const ways = {
  'reading': (token) => status('GET', '/v1/channels/jwt/a?since=now', { accept: 'application/json', ...bearer(token) }),
  'an event stream': (token) => status('GET', '/v1/stream?channel=jwt/a', { accept: 'text/event-stream', ...bearer(token) }),
  'publishing': (token) => status('POST', '/v1/channels/jwt/a', { 'content-type': 'application/json', ...bearer(token) }, '1'),
  'a batch': (token) => status('POST', '/v1/publish', { 'content-type': 'application/x-ndjson', ...bearer(token) }, '{"channel":"jwt/a","data":1}\n'),
  'presence': (token) => status('GET', '/v1/presence/jwt/a', bearer(token)),
  'a session by its header': (token) => status('GET', '/v1/connect', { ...upgrade, 'sec-websocket-protocol': 'millrace.v1+json', ...bearer(token) }),
  'a session by its subprotocols': (token) => status('GET', '/v1/connect', subprotocols(token)),
  'a channel by its subprotocols': (token) => status('GET', '/v1/channels/jwt/a', subprotocols(token)),
};

/** A live session, to which the tests send refresh commands. `say` returns the error code or `ok`. */
class Session {
  #id = 0;
  #waiting = new Map();

  static async open(token) {
    const session = new Session();
    session.socket = new WebSocket(`ws://${authority}/v1/connect`, ['millrace.v1+json', `bearer.${token}`]);
    await new Promise((resolve, reject) => (session.socket.once('open', resolve), session.socket.once('error', reject)));
    session.socket.on('close', (code) => session.#waiting.forEach((tell) => tell(`closed with ${code}`)));
    session.socket.on('message', (text) => {
      const { id, ok, error } = JSON.parse(text);
      session.#waiting.get(id)?.(ok ? 'ok' : error.code);
    });
    return session;
  }

  async say(command) {
    if (this.socket.readyState !== WebSocket.OPEN) return 'closed';
    const id = ++this.#id;
    const answer = new Promise((resolve) => this.#waiting.set(id, resolve));
    this.socket.send(JSON.stringify({ id, ...command }));
    let timer;
    const late = new Promise((resolve) => (timer = setTimeout(resolve, PATIENCE_MS, 'no answer')));
    return Promise.race([answer, late]).finally(() => clearTimeout(timer));
  }
}

// --- results -------------------------------------------------------------------------------------------------------

let passed = 0;
let failed = 0;
function judge(what, is, good) {
  if (good) return void passed++;
  failed++;
  console.log(`FAILED: ${what}: ${is}`);
}

/** Checks all tokens, four at a time. Each worker also sends its tokens as refresh commands to a live session. */
async function judgeAll(tokens, isRight) {
  const left = Object.entries(tokens);
  const worker = async () => {
    let session = await Session.open(whole);
    for (let next; (next = left.pop()); ) {
      const [name, token] = next;
      const answers = Object.entries(ways).map(async ([way, go]) => {
        // Skips a token that an HTTP header cannot carry.
        if (!(way.includes('subprotocols') ? /^[A-Za-z0-9._-]+$/ : /^[\x21-\x7e]+$/).test(token)) return;
        const is = await go(token);
        judge(`${name}, ${way}`, is, isRight(is, token));
      });
      await Promise.all(answers);
      const is = await session.say({ refresh: { token } });
      judge(`${name}, a refresh`, is, isRight(is, token));
      if (session.socket.readyState !== WebSocket.OPEN) session = await Session.open(whole);
    }
    const lives = await session.say({ publish: { channel: 'jwt/a', data: 1 } });
    judge('a session that was offered all these', lives, lives === 'ok');
    session.socket.close();
  };
  await Promise.all(Array.from({ length: 4 }, worker));
}

await judgeAll(accepted, (is) => [101, 200, 204, 'ok'].includes(is));
/** Results allowed for tokens that are too large: refused before the token is parsed, or the live session closed. */
const TOO_LARGE = [431, 'too_large', 'closed with 1009'];
await judgeAll(refused, (is, token) => [401, 'unauthorized'].includes(is) || (token.length > 8192 && TOO_LARGE.includes(is)));
judge('keys fetched because a token said so', visits, visits === 0);
trap.close();
const [good_, bad] = [accepted, refused].map((tokens) => Object.keys(tokens).length);
console.log(`${bad} tokens to refuse and ${good_} to accept, ${Object.keys(ways).length + 1} ways in: ${passed + failed} checks, ${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
