// A shared screen is a second video of a participant. In descriptions, its line has `a=content:slides` (RFC 4796); the
// SFU adds `.screen` to the id of its stream. Source: docs/reference/rooms.md, "Screen share".

const SUFFIX = '.screen';

/** Returns the description with a mark at each line of `mids`. Browsers do not keep such lines, so it is only sent. */
export function markScreens(description: RTCSessionDescriptionInit, mids: readonly string[]): RTCSessionDescriptionInit {
  const sdp = mids.reduce((sdp, mid) => sdp.replace(new RegExp(`^a=mid:${mid}\\r?$`, 'm'), (line) => `${line.trimEnd()}\r\na=content:slides\r`), description.sdp ?? '');
  return { type: description.type, sdp };
}

/** Returns the lines of a received description that carry a screen. */
export function screensOf(sdp = ''): ReadonlySet<string> {
  const sections = sdp.split(/^m=/m).slice(1);
  return new Set(sections.filter((section) => /^a=content:slides\s*$/m.test(section)).flatMap((section) => /^a=mid:(\S+)/m.exec(section)?.[1] ?? []));
}

/** Splits the id of a stream of the SFU into its participant and whether the stream is a screen. */
export const ownerOf = (stream: string): { owner: string; screen: boolean } => ({ owner: stream.replace(/\.screen$/, ''), screen: stream.endsWith(SUFFIX) });
