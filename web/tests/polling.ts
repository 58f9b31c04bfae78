// Makes `expect.poll` check again after at most 200 ms. By default it waits up to 1 s between two checks, and no
// setting changes that.
import { expect } from '@playwright/test';

const INTERVALS_MS = [20, 50, 100, 200];
const poll = expect.poll;

expect.poll = (actual, options) => poll(actual, { intervals: INTERVALS_MS, ...(typeof options === 'string' ? { message: options } : options) });
