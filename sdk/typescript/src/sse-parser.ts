// Parses server-sent events from decoded text that arrives in pieces. A `TextDecoder` has already removed the byte
// order mark. Source: HTML Living Standard, 9.2.6 "Interpreting an event stream". In addition, an `id:` without data is
// reported, because streams of this server begin with one.

export interface SseEvent {
  readonly event: string;
  /** Undefined if the block had no data. */
  readonly data: string | undefined;
  readonly id: string | undefined;
}

type Open = { -readonly [K in keyof SseEvent]: SseEvent[K] };

export class SseParser {
  #rest = '';
  /** The event of the lines since the last empty line. */
  #open: Open = { event: '', data: undefined, id: undefined };
  /**
   * Whether the last piece ended with a carriage return. A line feed at the start of the next piece then belongs to it.
   */
  #afterReturn = false;

  /** Returns the events that this piece completes. */
  push(piece: string): SseEvent[] {
    if (!piece) return [];
    if (this.#afterReturn && piece.startsWith('\n')) piece = piece.slice(1);
    this.#afterReturn = piece.endsWith('\r');
    const lines = piece.split(/\r\n|\r|\n/);
    const events: SseEvent[] = [];
    lines.forEach((line, i) => {
      // Lines are joined only when they are complete, so that a large line in many pieces is not copied repeatedly.
      this.#rest += line;
      if (i === lines.length - 1) return;
      const whole = this.#rest;
      this.#rest = '';
      const event = this.#line(whole);
      if (event) events.push(event);
    });
    return events;
  }

  #line(line: string): SseEvent | undefined {
    const open = this.#open;
    if (line === '') {
      this.#open = { event: '', data: undefined, id: undefined };
      return (open.data ?? open.id) === undefined ? undefined : { ...open, event: open.event || 'message' };
    }
    const [, field, value = ''] = /^([^:]*)(?:: ?(.*))?$/s.exec(line)!;
    if (field === 'event') open.event = value;
    else if (field === 'data') open.data = open.data === undefined ? value : `${open.data}\n${value}`;
    else if (field === 'id' && !value.includes('\0')) open.id = value;
    return undefined;
  }
}
