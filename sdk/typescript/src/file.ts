// Files over a channel, in chunks with a SHA-256, in both directions, and in the format of `millrace file`.
//
//   import { receiveFile, sendFile } from '@millrace/client/file';
//   const onProgress = ({ bytes, total }) => show(bytes / total);
//   const sending = sendFile(mr, 'files/car-7/settings', file, { onProgress });
//   sending.pause();
//   sending.resume();
//   const { sha256 } = await sending.done;
//   const { blob } = await receiveFile(mr, 'files/car-7/logs', { sha256 }).done;
//
// Source: docs/how-to/send-files.md, "The format".
import { pauseOf } from './backoff.js';
import { randomKey } from './client.js';
import { MillraceError, toError } from './errors.js';
import { onAbort, orAborted, sleep } from './listen.js';
import { Sha256 } from './sha256.js';
import type { Client, Event, From } from './types.js';

export { MillraceError, type ErrorCode } from './errors.js';
export { Sha256 } from './sha256.js';

/** Description of a file: its first message. */
export interface FileManifest {
  /** Name without a folder. It comes from the sender: never use it as a path. */
  readonly name: string;
  readonly bytes: number;
  /** In hexadecimal. */
  readonly sha256: string;
  readonly chunk_bytes: number;
}

export interface FileProgress {
  /** A file is hashed before it is sent. `waiting`: its manifest has not arrived yet. */
  readonly phase: 'hashing' | 'sending' | 'waiting' | 'receiving';
  readonly name: string;
  /** Bytes of this phase so far, and of the file. */
  readonly bytes: number;
  readonly total: number;
}

/** A file under way. */
export interface Transfer<T> {
  /**
   * Settles when the file is complete and its SHA-256 is right. Rejects with a MillraceError; `reason` is `missing`,
   * `damaged`, `too_large` or `changed` if the file itself is the cause, and the code is `aborted` after `cancel`.
   */
  readonly done: Promise<T>;
  readonly paused: boolean;
  pause(): void;
  resume(): void;
  cancel(): void;
}

export interface TransferOptions {
  readonly signal?: AbortSignal;
  readonly onProgress?: (progress: FileProgress) => void;
}

export interface SendFileOptions extends TransferOptions {
  /** Default: the name of the `File`. */
  readonly name?: string;
}

export interface ReceiveFileOptions extends TransferOptions {
  /** Receives the file with this SHA-256 only. Default: the first file of the channel. */
  readonly sha256?: string;
  /** Where to start. Default `earliest`: also a file that was sent before. */
  readonly from?: From;
  /** Maximum size, bytes. Default 1 GiB. */
  readonly bytesMax?: number;
  /** Takes the bytes in order, instead of `blob`, for files that do not fit into memory. */
  readonly write?: (bytes: Uint8Array<ArrayBuffer>) => void | Promise<void>;
}

export interface ReceivedFile {
  readonly manifest: FileManifest;
  /** Content; empty with `write`. */
  readonly blob: Blob;
}

/** Size of a chunk in bytes, as of the other clients. */
const CHUNK = 256 * 1024;
const BYTES_MAX = 2 ** 30;
/** Pauses between attempts while the server asks to wait because readers are slow, ms. */
const WAIT = { min: 100, max: 5_000, factor: 2, jitter: 'full' } as const;

/**
 * Sends a file. Each chunk is sent after the server has stored the previous one, so that the sender is never faster
 * than the server allows. Memory: one chunk. The client needs the permission to publish.
 */
export function sendFile(mr: Pick<Client<any>, 'publish'>, channel: string, file: Blob, options: SendFileOptions = {}): Transfer<FileManifest> {
  const { name = (file as Partial<File>).name ?? 'file', onProgress } = options;
  const total = file.size;
  const slice = async (at: number): Promise<Uint8Array<ArrayBuffer>> => {
    try {
      return new Uint8Array(await file.slice(at, at + CHUNK).arrayBuffer());
    } catch (thrown) {
      throw problem('changed', `${name} cannot be read; it may have changed or moved: ${(thrown as Error).message}`);
    }
  };

  return transfer(options, async (gate, signal) => {
    const hash = new Sha256();
    for (let at = 0; at < total; at += CHUNK) {
      await gate();
      hash.update(await slice(at));
      onProgress?.({ phase: 'hashing', name, bytes: Math.min(at + CHUNK, total), total });
    }
    const manifest: FileManifest = { name, bytes: total, sha256: hash.hex(), chunk_bytes: CHUNK };
    await publish({ file: manifest }, manifest.sha256);
    const again = new Sha256();
    // An empty file has one empty chunk, so that its receiver finds an end.
    for (let i = 0; i === 0 || i * CHUNK < total; i++) {
      await gate();
      const chunk = await slice(i * CHUNK);
      again.update(chunk);
      await publish(chunk, `${manifest.sha256}/${i}`);
      onProgress?.({ phase: 'sending', name, bytes: i * CHUNK + chunk.length, total });
    }
    if (again.hex() !== manifest.sha256) throw problem('changed', `${name} has changed while it was sent; send it again`);
    return manifest;

    /** Publishes a message, once, however often the server asks to wait. */
    async function publish(data: unknown, key: string): Promise<void> {
      const idempotencyKey = randomKey();
      for (let attempt = 0; ; attempt++) {
        try {
          return void (await mr.publish(channel, data as never, { key, idempotencyKey, signal }));
        } catch (thrown) {
          const error = toError(thrown);
          if (!error.retryable || signal.aborted) throw error;
          await orAborted(sleep(pauseOf(error, attempt, WAIT)), signal);
        }
      }
    }
  });
}

/**
 * Receives a file, and resumes at its position after a pause or a lost connection. The client needs the permissions to
 * subscribe and to read history.
 */
export function receiveFile(mr: Pick<Client<any>, 'subscribe'>, channel: string, options: ReceiveFileOptions = {}): Transfer<ReceivedFile> {
  const { sha256, bytesMax = BYTES_MAX, write, onProgress } = options;
  const parts: Uint8Array<ArrayBuffer>[] = [];
  const hash = new Sha256();
  let manifest: FileManifest | undefined;
  let next = 0;
  let bytes = 0;

  /** Takes a message. Returns true after the last one of the file. */
  async function take({ key = '', data }: Event): Promise<boolean> {
    if (!manifest) {
      const first = manifestOf(data);
      if (!first || first.sha256 !== key || (sha256 !== undefined && sha256 !== key)) return false;
      if (first.bytes > bytesMax) throw problem('too_large', `${first.name} has ${first.bytes} bytes, more than ${bytesMax}`);
      manifest = first;
      report();
      return false;
    }
    const [of, number] = key.split('/');
    const index = Number(number);
    // A sender that was interrupted begins anew, so chunks can be repeated.
    if (of !== manifest.sha256 || !/^\d+$/.test(number ?? '') || index < next) return false;
    if (index > next) throw problem('missing', `chunk ${next} of ${manifest.name} is missing: the history of the channel no longer holds the whole file; raise bytes_max of its namespace, and send the file again`);
    const chunk = data instanceof Uint8Array ? (data as Uint8Array<ArrayBuffer>) : new Uint8Array();
    next++;
    bytes += chunk.length;
    hash.update(chunk);
    if (write) await write(chunk);
    else parts.push(chunk);
    report();
    if (next < Math.ceil(manifest.bytes / manifest.chunk_bytes)) return false;
    if (bytes !== manifest.bytes || hash.hex() !== manifest.sha256) throw problem('damaged', `${manifest.name} is damaged: its SHA-256 is not that of its manifest`);
    return true;
  }

  function report(): void {
    onProgress?.({ phase: manifest ? 'receiving' : 'waiting', name: manifest?.name ?? '', bytes, total: manifest?.bytes ?? 0 });
  }

  return transfer(options, async (gate, signal, isPaused) => {
    let from: From = options.from ?? 'earliest';
    report();
    for (;;) {
      await gate();
      // A paused receiver reads nothing, so that the server holds the file, not this client.
      const pausing = new AbortController();
      const off = isPaused(() => pausing.abort());
      try {
        for await (const event of mr.subscribe(channel, { from, signal: AbortSignal.any([signal, pausing.signal]) })) {
          from = { position: event.position };
          if (await take(event as Event)) return { manifest: manifest!, blob: new Blob(parts) };
          if (pausing.signal.aborted) break;
        }
      } finally {
        off();
      }
      if (!pausing.signal.aborted) throw toError('the subscription ended before the file was complete', 'aborted');
    }
  });
}

const problem = (reason: string, message: string): MillraceError => new MillraceError('rejected', message, { retryable: false, reason });

/** Returns the manifest in a message. Messages come from outside; another one is no manifest. */
function manifestOf(data: unknown): FileManifest | undefined {
  const file = (data as { file?: Partial<FileManifest> } | null)?.file;
  const isSize = (value: unknown): boolean => Number.isSafeInteger(value) && (value as number) >= 0;
  const fits = file && typeof file.name === 'string' && typeof file.sha256 === 'string' && isSize(file.bytes) && isSize(file.chunk_bytes) && (file.chunk_bytes! > 0 || file.bytes === 0);
  return fits ? (file as FileManifest) : undefined;
}

/** Runs a transfer. `gate` settles while it is not paused, and rejects once it is canceled. */
function transfer<T>(
  { signal }: TransferOptions,
  run: (gate: () => Promise<void>, signal: AbortSignal, isPaused: (fn: () => void) => () => void) => Promise<T>,
): Transfer<T> {
  const canceling = new AbortController();
  const onPause = new Set<() => void>();
  let resumed: (() => void) | undefined;
  let waiting: Promise<void> | undefined;
  const cancel = (): void => canceling.abort(new MillraceError('aborted', 'the transfer was canceled'));
  const off = onAbort(signal, cancel);
  const gate = async (): Promise<void> => {
    while (waiting) await orAborted(waiting, canceling.signal);
    if (canceling.signal.aborted) throw toError(canceling.signal.reason);
  };
  const isPaused = (fn: () => void): (() => void) => {
    onPause.add(fn);
    return () => void onPause.delete(fn);
  };
  const done = run(gate, canceling.signal, isPaused)
    .catch((thrown: unknown) => {
      throw canceling.signal.aborted ? toError(canceling.signal.reason) : toError(thrown);
    })
    .finally(off);
  // An application that shows only the progress learns of the end there.
  done.catch(() => {});
  return {
    done,
    get paused() {
      return waiting !== undefined;
    },
    pause() {
      waiting ??= new Promise((resolve) => (resumed = resolve));
      onPause.forEach((fn) => fn());
    },
    resume() {
      waiting = undefined;
      resumed?.();
    },
    cancel,
  };
}
