/** Files that the page creates itself. */
export interface File {
  readonly name: string;
  readonly type: string;
  readonly text: string;
}

/** Encodes one field of CSV (RFC 4180). */
export function field(value: string | number | boolean | undefined | null): string {
  const text = value === undefined || value === null ? '' : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export const download = ({ name, type, text }: File): void => downloadBlob(name, new Blob([text], { type: `${type};charset=utf-8` }));

export function downloadBlob(name: string, blob: Blob): void {
  const url = URL.createObjectURL(blob);
  const link = Object.assign(document.createElement('a'), { href: url, download: name });
  link.click();
  // The delay lets the browser begin to read the file.
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
