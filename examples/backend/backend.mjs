// A back end for Millrace, without dependencies: authenticates, authorizes, answers calls, keeps a roster.
import { createHmac, timingSafeEqual } from 'node:crypto';
import { createServer } from 'node:http';

const { HOOKS_SECRET: SECRET, PORT = 3000 } = process.env;
// Here the token is the name of the user. In your application, look the token up in your sessions.
const USERS = { 'ann-token': { subject: 'ann', name: 'Ann' }, 'bob-token': { subject: 'bob', name: 'Bob' } };
const BANNED = /\bspam\b/i;

const refuse = (code, detail) => ({ allow: false, code, detail });

const hooks = {
  /** Authenticates the client, and grants what it may do. */
  connect({ token }) {
    const user = USERS[token];
    if (!user) return refuse('unknown_user', 'log in first');
    const grants = ['publish', 'subscribe', 'history', 'presence'].map((permission) => ({ permission, pattern: 'chat/#' }));
    return { allow: true, ttl_s: 60, subject: user.subject, info: { name: user.name }, grants };
  },
  /** Everyone reads the chat; only Ann reads what the staff writes. */
  subscribe: ({ subject, channel }) =>
    channel === 'chat/staff' && subject !== 'ann' ? refuse('not_staff', 'only the staff reads this channel') : { allow: true, ttl_s: 60 },
  /** Refuses unwanted messages, and adds the name of the sender, which the client cannot forge. */
  publish({ subject, data }) {
    if (BANNED.test(data?.text)) return refuse('unwanted', 'this message is not wanted here');
    return { allow: true, data: { ...data, from: subject } };
  },
  /** Answers remote procedure calls. */
  rpc({ subject, method, params }) {
    if (method === 'chat/greet') return { result: `Hello ${params?.name ?? subject}` };
    if (method === 'chat/who') return { result: [...(roster.get(params?.channel) ?? []).values()] };
    return { error: { code: 'no_method', detail: `there is no method ${method}` } };
  },
};

/** Names of the members of each channel, by member id. Your application would keep them in its database. */
const roster = new Map();
/** Ids of handled events: an event may arrive twice. */
const handled = new Set();

const events = {
  joined({ channel, member, info }) {
    if (!roster.has(channel)) roster.set(channel, new Map());
    roster.get(channel).set(member, info?.name ?? member);
  },
  left: ({ channel, member }) => roster.get(channel)?.delete(member),
  vacated: ({ channel }) => roster.delete(channel),
};

function receive(event) {
  if (handled.has(event.id)) return;
  handled.add(event.id);
  if (handled.size > 100_000) handled.delete(handled.values().next().value);
  console.log(event.type, event.channel ?? event.connection, event.member ?? '');
  if (Object.hasOwn(events, event.type)) events[event.type](event);
}

/** Returns whether Millrace has signed this body within the last five minutes. */
function isSigned(header, body) {
  const parts = String(header).split(',').map((part) => part.split('='));
  const time = parts.find(([name]) => name === 't')?.[1];
  if (!(Math.abs(Date.now() / 1000 - Number(time)) <= 300)) return false;
  const expected = createHmac('sha256', SECRET).update(`${time}.${body}`).digest();
  const sent = parts.filter(([name]) => name === 'v1').map(([, hex]) => Buffer.from(hex, 'hex'));
  return sent.some((each) => each.length === expected.length && timingSafeEqual(each, expected));
}

const server = createServer(async (request, response) => {
  let body = '';
  for await (const piece of request.setEncoding('utf8')) body += piece;
  if (!isSigned(request.headers['millrace-signature'], body)) return response.writeHead(401).end();
  const message = JSON.parse(body);
  if (request.url === '/hooks') response.end(JSON.stringify(hooks[message.hook](message)));
  else if (request.url === '/webhooks') {
    message.events.forEach(receive);
    response.end();
  } else response.writeHead(404).end();
});
if (!SECRET) throw new Error('set HOOKS_SECRET to the secret of `hooks.secrets`');
server.listen(PORT, '127.0.0.1', () => console.log(`listening on http://127.0.0.1:${server.address().port}`));
