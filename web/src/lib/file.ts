/** Files that a page writes by itself. */
export interface File {
  readonly name: string;
  readonly type: string;
  readonly text: string;
}

/** One field of CSV (RFC 4180). */
export function field(value: string | number | boolean | undefined | null): string {
  const text = value === undefined || value === null ? '' : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function download({ name, type, text }: File): void {
  const url = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  const link = Object.assign(document.createElement('a'), { href: url, download: name });
  link.click();
  // Not before the browser has begun to read it.
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
