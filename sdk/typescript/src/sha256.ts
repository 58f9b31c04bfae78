// SHA-256 in parts, for files that do not fit into memory. `crypto.subtle` hashes only a whole message, and pages
// without HTTPS do not have it.
//
// Source: FIPS 180-4, sections 4.1.2, 5 and 6.2.

/** Cube roots of the first 64 primes, and square roots of the first 8: 32 bits of their fractions. */
const [K, START] = constants();

function constants(): [Uint32Array, Uint32Array] {
  const primes: number[] = [];
  for (let n = 2; primes.length < 64; n++) if (primes.every((prime) => n % prime)) primes.push(n);
  const fraction = (root: number): number => ((root % 1) * 2 ** 32) >>> 0;
  return [Uint32Array.from(primes, (prime) => fraction(Math.cbrt(prime))), Uint32Array.from(primes.slice(0, 8), (prime) => fraction(Math.sqrt(prime)))];
}

const BLOCK = 64;

/** A hash in progress. */
export class Sha256 {
  readonly #state = Uint32Array.from(START);
  readonly #words = new Uint32Array(64);
  readonly #rest = new Uint8Array(BLOCK);
  /** Bytes in `#rest`. */
  #held = 0;
  #length = 0;

  update(bytes: Uint8Array): this {
    this.#length += bytes.length;
    let at = 0;
    if (this.#held) {
      at = Math.min(BLOCK - this.#held, bytes.length);
      this.#rest.set(bytes.subarray(0, at), this.#held);
      this.#held += at;
      if (this.#held < BLOCK) return this;
      this.#compress(this.#rest, 0);
    }
    for (; at + BLOCK <= bytes.length; at += BLOCK) this.#compress(bytes, at);
    this.#rest.set(bytes.subarray(at));
    this.#held = bytes.length - at;
    return this;
  }

  /** Returns the hash in hexadecimal. The object must not be used afterwards. */
  hex(): string {
    const bits = this.#length * 8;
    const zeros = (BLOCK + 55 - this.#held) % BLOCK;
    const end = new Uint8Array(1 + zeros + 8);
    end[0] = 0x80;
    const view = new DataView(end.buffer);
    view.setUint32(1 + zeros, Math.floor(bits / 2 ** 32));
    view.setUint32(5 + zeros, bits);
    this.update(end);
    return [...this.#state].map((word) => word.toString(16).padStart(8, '0')).join('');
  }

  #compress(bytes: Uint8Array, at: number): void {
    const w = this.#words;
    const state = this.#state;
    for (let i = 0; i < 16; i++, at += 4) w[i] = (bytes[at]! << 24) | (bytes[at + 1]! << 16) | (bytes[at + 2]! << 8) | bytes[at + 3]!;
    for (let i = 16; i < 64; i++) {
      const x = w[i - 15]!;
      const y = w[i - 2]!;
      w[i] = w[i - 16]! + (turned(x, 7) ^ turned(x, 18) ^ (x >>> 3)) + w[i - 7]! + (turned(y, 17) ^ turned(y, 19) ^ (y >>> 10));
    }
    // Assignments one by one: this loop runs for every 64 bytes of a file.
    let a = state[0]!, b = state[1]!, c = state[2]!, d = state[3]!, e = state[4]!, f = state[5]!, g = state[6]!, h = state[7]!;
    for (let i = 0; i < 64; i++) {
      const first = (h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + K[i]! + w[i]!) | 0;
      const second = ((turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + first) | 0;
      d = c;
      c = b;
      b = a;
      a = (first + second) | 0;
    }
    state[0]! += a;
    state[1]! += b;
    state[2]! += c;
    state[3]! += d;
    state[4]! += e;
    state[5]! += f;
    state[6]! += g;
    state[7]! += h;
  }
}

const turned = (word: number, by: number): number => (word >>> by) | (word << (32 - by));
