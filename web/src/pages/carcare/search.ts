/** Whether a text has all words of a query. A number must be a whole word: "car 4" is not the car with the trouble code P0420. */
export function matches(text: string, query: string): boolean {
  const known = text.toLowerCase();
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const whole = new Set(known.split(/\W+/));
  return words.every((word) => (/^\d+$/.test(word) ? whole.has(word) : known.includes(word)));
}
