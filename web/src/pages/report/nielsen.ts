/** Limits of human perception: J. Nielsen, "Usability Engineering", 1993, chapter 5.5. Microseconds. */
export const NIELSEN = [
  { at: 100_000, description: '0.1 s: feels instant' },
  { at: 1_000_000, description: '1 s: flow of thought kept' },
  { at: 10_000_000, description: '10 s: attention lost' },
] as const;
