/** One publication in the answers of `tail` and `page`. */
export interface PublicationRow {
  readonly offset: number;
  readonly time_ms: number;
  readonly key?: string;
  /** Size of the whole payload. */
  readonly bytes: number;
  readonly text?: string;
  readonly base64?: string;
  /** True if only the beginning of the payload is shown. */
  readonly truncated: boolean;
  readonly deleted?: boolean;
}

export const MODES = ['text', 'json', 'hex'] as const;
export type Mode = (typeof MODES)[number];

const LINE = 16;

/** Returns bytes as `00000000  68 65 6c 6c 6f  |hello|`, 16 per line. */
export function hex(data: Uint8Array): string {
  const lines: string[] = [];
  for (let at = 0; at < data.length; at += LINE) {
    const part = [...data.subarray(at, at + LINE)];
    const shown = part.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : '.')).join('');
    lines.push(`${at.toString(16).padStart(8, '0')}  ${part.map((byte) => byte.toString(16).padStart(2, '0')).join(' ').padEnd(3 * LINE - 1)}  |${shown}|`);
  }
  return lines.join('\n');
}

/** Returns the payload in a view. JSON that does not parse, for example because it is cut, stays as it is. */
export function show(row: Pick<PublicationRow, 'text' | 'base64'>, mode: Mode): string {
  const data = row.base64 === undefined ? new TextEncoder().encode(row.text ?? '') : Uint8Array.from(atob(row.base64), (char) => char.charCodeAt(0));
  if (mode === 'hex' || row.base64 !== undefined) return hex(data);
  const text = row.text ?? '';
  if (mode === 'text') return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
