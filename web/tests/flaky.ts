import type { FullResult, Reporter, Suite } from '@playwright/test/reporter';

/** Prints "FLAKY: name" for each test that failed and then passed. scripts/test.sh repeats these lines at its end. */
export default class Flaky implements Reporter {
  private root: Suite | undefined;

  onBegin(_: unknown, root: Suite): void {
    this.root = root;
  }

  onEnd(_: FullResult): void {
    for (const test of this.root?.allTests() ?? []) if (test.outcome() === 'flaky') console.log(`FLAKY: ${test.titlePath().filter(Boolean).join(' › ')}`);
  }

  printsToStdio(): boolean {
    return false;
  }
}
