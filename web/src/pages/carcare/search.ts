/**
 * Returns whether a text contains all words of a query. A number must match a whole word: "car 4" does not match the
 * car with trouble code P0420.
 */
export function matches(text: string, query: string): boolean {
  const known = text.toLowerCase();
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const whole = new Set(known.split(/\W+/));
  return words.every((word) => (/^\d+$/.test(word) ? whole.has(word) : known.includes(word)));
}
