/**
 * The transfer of each car. It continues while the page shows another car, and ends with the page.
 */
import type { FileProgress, Transfer } from '@millrace/client/file';
import type { CarId } from '../telemetry';
import { p } from './words';

export interface Shown {
  readonly name: string;
  /** Present while the transfer runs. */
  transfer?: Transfer<unknown> | undefined;
  progress?: FileProgress;
  paused: boolean;
  /** How the transfer ended. */
  done: string;
  trouble: string;
}

const shown = $state<Record<string, Shown>>({});

/** Returns the newest transfer of a car. */
export const transferOf = (car: CarId): Shown | undefined => shown[String(car)];

/** Runs a transfer of a car, and shows how it ends. `end` returns the text for success. */
export async function run<T>(
  car: CarId,
  name: string,
  start: (onProgress: (progress: FileProgress) => void) => Transfer<T>,
  end: (result: T) => string | Promise<string>,
): Promise<void> {
  transferOf(car)?.transfer?.cancel();
  shown[String(car)] = { name, paused: false, done: '', trouble: '' };
  const mine = shown[String(car)]!;
  const transfer = start((progress) => (mine.progress = progress));
  mine.transfer = transfer;
  try {
    mine.done = await end(await transfer.done);
  } catch (error) {
    const { code, message } = error as { code?: string; message: string };
    if (code === 'aborted') mine.done = p('fileCanceled', name);
    else mine.trouble = p('fileFailed', name, message);
  }
  mine.transfer = undefined;
}

/** Pauses or resumes the transfer of a car. */
export function toggle(car: CarId): void {
  const mine = transferOf(car);
  if (!mine?.transfer) return;
  mine.paused = !mine.paused;
  if (mine.paused) mine.transfer.pause();
  else mine.transfer.resume();
}
