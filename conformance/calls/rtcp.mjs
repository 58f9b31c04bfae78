// Counts RTCP packets by kind in the dumps that Chromium and Firefox log before encryption and after decryption. A line
// is `I|O time 0000 hex..`, the input format of text2pcap, with a comment after the bytes.

const PACKET = /\b([IO]) \d\d:\d\d:\d\d\.\d+\s+(?:00){2,3}((?: [0-9a-f]{2})+)/;

/** Names of RTCP packets by type and, for feedback, by format. Sources: RFC 3550, 4585, 5104 and 8888. */
function kindOf(type, format, isRemb) {
  if (type === 205) return { 1: 'NACK', 15: 'TWCC', 11: 'CCFB' }[format] ?? `RTPFB/${format}`;
  if (type === 206) return { 1: 'PLI', 4: 'FIR' }[format] ?? (format === 15 && isRemb ? 'REMB' : `PSFB/${format}`);
  return { 200: 'SR', 201: 'RR', 202: 'SDES', 203: 'BYE', 204: 'APP', 207: 'XR' }[type] ?? `${type}`;
}

/** Adds the packets of one compound packet to `counts`. A packet of another protocol, such as RTP, changes nothing. */
export function count(counts, bytes) {
  for (let at = 0; at + 4 <= bytes.length; ) {
    const [first, type] = [bytes[at], bytes[at + 1]];
    if (first >> 6 !== 2 || type < 192 || type > 223) return;
    const isRemb = bytes.subarray(at + 12, at + 16).toString('latin1') === 'REMB';
    const kind = kindOf(type, first & 31, isRemb);
    counts[kind] = (counts[kind] ?? 0) + 1;
    at += 4 * (bytes.readUInt16BE(at + 2) + 1);
  }
}

/** Counts the RTCP packets of a growing log: `feed` takes its next bytes. */
export function dumpReader() {
  const counts = { sent: {}, received: {} };
  let rest = '';
  return {
    counts,
    feed(text) {
      const lines = (rest + text).split('\n');
      rest = lines.pop();
      for (const line of lines) {
        const found = PACKET.exec(line);
        if (found) count(found[1] === 'O' ? counts.sent : counts.received, Buffer.from(found[2].replaceAll(' ', ''), 'hex'));
      }
    },
  };
}
