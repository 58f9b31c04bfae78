/** Size and frame rate of the own video, as the user has chosen them. The choice is kept for the next call. */
import type { VideoChoice } from '@millrace/client/room';

export const SIZES = [
  { width: 320, height: 180 },
  { width: 640, height: 360 },
  { width: 960, height: 540 },
  { width: 1280, height: 720 },
] as const;
export const FRAME_RATES = [5, 10, 15, 24, 30] as const;

const KEY = 'millrace-video';
const DEFAULT: VideoChoice = { ...SIZES[1], frameRate: 30, steer: true };

/** Returns the kept choice, or the default for anything that is not one. */
export function keptChoice(): VideoChoice {
  try {
    const { width, frameRate, steer } = JSON.parse(localStorage.getItem(KEY) ?? '{}') as Partial<VideoChoice>;
    return { ...(SIZES.find((size) => size.width === width) ?? SIZES[1]), frameRate: FRAME_RATES.find((rate) => rate === frameRate) ?? DEFAULT.frameRate, steer: steer ?? true };
  } catch {
    return DEFAULT;
  }
}

export const keepChoice = (choice: VideoChoice): void => localStorage.setItem(KEY, JSON.stringify(choice));
