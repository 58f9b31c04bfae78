import type { FullResult, Reporter, Suite } from '@playwright/test/reporter';

/**
 * Prints "FLAKY: name" for each test that failed and then passed, and once each reason "skipped: ..." for which tests
 * were skipped. scripts/test.sh repeats these lines at its end.
 */
export default class Flaky implements Reporter {
  private root: Suite | undefined;

  onBegin(_: unknown, root: Suite): void {
    this.root = root;
  }

  onEnd(_: FullResult): void {
    const tests = this.root?.allTests() ?? [];
    for (const test of tests) if (test.outcome() === 'flaky') console.log(`FLAKY: ${test.titlePath().filter(Boolean).join(' › ')}`);
    const reasons = tests.flatMap(({ annotations }) => annotations.flatMap(({ description }) => (description?.startsWith('skipped: ') ? [description] : [])));
    for (const reason of new Set(reasons)) console.log(reason);
  }

  printsToStdio(): boolean {
    return false;
  }
}
