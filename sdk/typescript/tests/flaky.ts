import type { Reporter, TestCase } from 'vitest/node';
import { missing } from './firefox.js';

/**
 * Prints "FLAKY: name" for each test that failed and then passed, after the errors of the failure. Also prints
 * why the tests in Firefox were skipped, if they were. scripts/test.sh repeats these lines at its end.
 */
export default class Flaky implements Reporter {
  private readonly flaky: { name: string; errors: string[] }[] = [];

  onTestCaseResult(test: TestCase): void {
    if (!test.diagnostic()?.flaky) return;
    const name = `${test.project.name} › ${test.module.relativeModuleId} › ${test.fullName}`;
    const errors = (test.result().errors ?? []).map((error) => error.stack ?? error.message);
    this.flaky.push({ name, errors });
  }

  onTestRunEnd(): void {
    for (const { name, errors } of this.flaky) console.log([...errors, `FLAKY: ${name}`].join('\n'));
    if (missing) console.log(missing);
  }
}
