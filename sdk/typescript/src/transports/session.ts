// A session, `millrace.v1+json`, over any carrier of text in both directions. Source: docs/reference/protocol.md,
// "Sessions".
import { MillraceError, refused, toError } from '../errors.js';
import { tokenOf, type Draft, type Link, type LinkHost } from '../link.js';
import { TIMER_MAX } from '../listen.js';

/** Delay before a refused but retryable subscription is repeated, ms. */
const RETRY = 1000;
/** Minimum time between two refreshes of a token, ms. */
const REFRESH_MIN = 1000;

/**
 * Receives a reply. A callback, not a promise: several messages can arrive in one turn of the event loop, and a
 * subscription must have started before the message that follows its reply.
 */
type ReplyHandler = (error: MillraceError | undefined, ok?: any) => void;

/** A connection that carries the text of a session. */
export interface Carrier {
  send(text: string): void;
  close(): void;
}

/** Opens a carrier that reports each text it receives, and its end once. After `signal` aborts, it reports nothing. */
export type Dial = (
  host: LinkHost,
  token: string | undefined,
  receive: (text: string) => void,
  end: (error: MillraceError) => void,
  signal: AbortSignal,
) => Carrier;

export function openSession(host: LinkHost, dial: Dial): Link {
  const { hub, counts, report } = host;
  const over = new AbortController();
  const waiting = new Map<number, ReplyHandler>();
  /** Maps each subscribed channel to its policy. */
  const reading = new Map<string, string>();
  let carrier: Carrier | undefined;
  let ids = 0;
  let due: ReturnType<typeof setTimeout>;
  let pingMs: number;
  let bytesMax: number;

  async function connect(): Promise<void> {
    const token = await tokenOf(host, 'connect', over.signal);
    if (over.signal.aborted) return;
    const since = Date.now();
    const receive = (data: string): void => {
      counts.bytesIn += data.length;
      try {
        const message = JSON.parse(data);
        const { id, push, error, ok, ...item } = message;
        if (push === 'connected') {
          pingMs = message.ping_ms;
          bytesMax = message.message_bytes_max;
          report('opened', Date.now() - since);
          ping();
        }
        report('alive', pingMs);
        if (push === 'connected' || push === 'refresh') scheduleRefresh(message);
        if (push === 'message' || push === 'gap') hub.receive(item);
        else if (push === 'drain') report('drain', message.after_ms);
        else if (push === 'unsubscribed') lose(message.channel, refused(message));
        else if (push === 'error') host.log?.({ level: 'warn', msg: `${message.code}: ${message.detail}` });
        waiting.get(id)?.(error && refused(error), ok);
        waiting.delete(id);
      } catch (thrown) {
        end(toError(thrown, 'protocol'));
      }
    };
    carrier = dial(host, token, receive, end, over.signal);
  }

  function send(command: string, asked: object, handleReply: ReplyHandler): void {
    const { data, type, ...body } = asked as Draft;
    const bytes = data instanceof Uint8Array;
    const id = ++ids;
    let text = JSON.stringify({ id, [command]: bytes ? { ...body, encoding: 'base64' } : body });
    if (data !== undefined) text = `${text.slice(0, -2)},"data":${/json/.test(type) ? data : JSON.stringify(bytes ? toBase64(data) : data)}}}`;
    // In UTF-8, a UTF-16 unit takes up to three bytes. A message of more than twice the limit would end the session
    // (1009).
    if (text.length * 3 > bytesMax && (size(text) > bytesMax * 2 || size(data ?? '') > bytesMax)) {
      return handleReply(refused({ code: 'too_large', detail: `larger than ${bytesMax} bytes` }));
    }
    waiting.set(id, handleReply);
    carrier!.send(text);
    counts.bytesOut += text.length;
  }

  function changed(): void {
    const wanted = hub.wanted();
    for (const [channel, policy] of reading) {
      if (wanted.some((want) => want.channel === channel && want.policy === policy)) continue;
      reading.delete(channel);
      send('unsubscribe', { channel }, () => {});
    }
    for (const want of wanted) {
      const { channel, policy } = want;
      if (reading.has(channel)) continue;
      reading.set(channel, policy);
      send('subscribe', want, (error, ok) => {
        if (!error) hub.started(channel, ok);
        else if (!error.retryable) hub.refused(channel, error);
        else if (!over.signal.aborted) {
          setTimeout(() => {
            reading.delete(channel);
            changed();
          }, RETRY);
        }
      });
    }
  }

  /** Ends a subscription that the server has ended. */
  function lose(channel: string, cause: MillraceError): void {
    reading.delete(channel);
    hub.refused(channel, cause);
  }

  /**
   * Refreshes the token when a tenth of its lifetime is left. If the refresh fails, the server closes the session
   * (4001), and the next link asks for a new token.
   */
  function scheduleRefresh({ expires_ms, unsubscribed = [] }: { expires_ms?: number; unsubscribed?: string[] }): void {
    for (const channel of unsubscribed) lose(channel, refused({ code: 'forbidden' }));
    if (!expires_ms || typeof host.token === 'string') return;
    clearTimeout(due);
    due = setTimeout(() => {
      tokenOf(host, 'expired', over.signal).then((token) => send('refresh', { token }, (_, ok) => ok && scheduleRefresh(ok)), () => {});
    }, Math.min(Math.max(expires_ms * 0.9, REFRESH_MIN), TIMER_MAX));
  }

  function ping(): void {
    const since = Date.now();
    send('ping', {}, (error) => error ?? (counts.rtt = Date.now() - since));
  }

  function end(error: MillraceError): void {
    if (over.signal.aborted) return;
    close();
    report('closed', error);
  }

  function close(): void {
    over.abort();
    clearTimeout(due);
    carrier?.close();
    // Unanswered requests are repeated over the next link, whatever ended this one.
    waiting.forEach((handleReply) => handleReply(new MillraceError('network', 'closed')));
    waiting.clear();
  }

  connect().catch((thrown) => end(toError(thrown)));
  return {
    changed,
    ping,
    ask: (command, body) => new Promise((resolve, reject) => send(command, body, (error, ok) => (error ? reject(error) : resolve(ok)))),
    close,
  };
}

const size = (part: any): number => new Blob([part]).size;

const toBase64 = (bytes: Uint8Array): string => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(''));
