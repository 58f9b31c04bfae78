// Parses server-sent events from decoded text that arrives in pieces. A `TextDecoder` has already removed the byte
// order mark. Source: HTML Living Standard, 9.2.6 "Interpreting an event stream". In addition, an `id:` without data is
// reported, because streams of this server begin with one.

export interface SseEvent {
  readonly event: string;
  /** Undefined if the block had no data. */
  readonly data: string | undefined;
  readonly id: string | undefined;
}

export class SseParser {
  #rest = '';
  #event = '';
  #data: string[] = [];
  #id: string | undefined;
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
    if (line === '') {
      const event = { event: this.#event || 'message', data: this.#data.length ? this.#data.join('\n') : undefined, id: this.#id };
      this.#event = '';
      this.#data = [];
      this.#id = undefined;
      return event.data === undefined && event.id === undefined ? undefined : event;
    }
    const colon = line.indexOf(':');
    if (colon === 0) return undefined;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1);
    if (field === 'event') this.#event = value;
    else if (field === 'data') this.#data.push(value);
    else if (field === 'id' && !value.includes('\0')) this.#id = value;
    return undefined;
  }
}
