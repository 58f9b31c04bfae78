// The rules of prose.mjs. `name` appears in the allow-list; `use` says what to write instead.
//
// Kinds of text: `comment` (comments of source code), `markdown` (documents, without code blocks and tables).

const word = (...words) => new RegExp(`\\b(?:${words.join('|')})\\b`, 'i');

export const LINE_MAX = 120;

export const RULES = [
  { name: 'people', pattern: word('whoever', 'somebody', 'nobody', 'everybody', 'anybody'), use: 'name the client, publisher, reader or peer' },
  { name: 'told', pattern: word('(?:is|are|was|were|be|been|being) told', 'tells?', 'telling'), use: 'send, deliver, notify or report' },
  { name: 'hear', pattern: word('hears?', 'heard', 'hearing'), use: 'receive, read or consume' },
  { name: 'say', pattern: word('is said', 'are said', 'was said', 'says nothing', 'said nothing', 'without a word', 'who speaks'), use: 'publish, send or report; active speaker' },
  { name: 'quantity', pattern: word('so many', 'so much', 'so long at most', 'at most so (?:many|much|long)'), use: 'limit, quota or maximum' },
  { name: 'gone', pattern: word('give(?:s)? way', 'gave way', 'let(?:s)? go', 'has gone', 'have gone', 'is gone', 'are gone'), use: 'drop, discard, evict, expire or disconnect' },
  { name: 'again', pattern: word('sent again', 'asked for again', 'send again', 'ask(?:s)? for again'), use: 'retransmit, retransmission or NACK' },
  { name: 'way', pattern: word('the way there', 'there and back', 'on the way', 'narrow way', 'wide way', 'the ways'), use: 'path, round-trip time or one-way delay' },
  { name: 'believe', pattern: word('believes?', 'believed'), use: 'trust or verify' },
  { name: 'picture', pattern: word('pictures? and sound', 'whose sound', 'whose picture'), use: 'video, audio or speaker' },
  { name: 'stale', pattern: word('outdated', 'overtaken'), use: 'stale, superseded or conflated' },
  { name: 'made', pattern: word('is got', 'are got', 'is had', 'are had', 'is made anew', 'made anew'), use: 'obtain, create or renew' },
  { name: 'promise', pattern: word('for ever', 'in vain', 'by itself alone', 'so be it'), use: 'a plain statement' },
  // A first line that is no sentence: "Whom this request comes from.", "What waits."
  { name: 'fragment', kinds: ['comment'], first: true, pattern: /^(?:Who|Whose|Whom|What|Whatever|Whoever|How much|How many|How long|So much|As long as)\b[^?]*$/, use: 'a sentence: "Returns ..", "Bytes queued per .."' },
];
