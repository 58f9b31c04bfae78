import type { Reporter, TestCase } from 'vitest/node';

/** Prints "FLAKY: name" for each test that failed and then passed; scripts/test.sh repeats these lines at its end. */
export default class Flaky implements Reporter {
  private readonly names: string[] = [];

  onTestCaseResult(test: TestCase): void {
    if (test.diagnostic()?.flaky) this.names.push(`${test.project.name} › ${test.module.relativeModuleId} › ${test.fullName}`);
  }

  onTestRunEnd(): void {
    for (const name of this.names) console.log(`FLAKY: ${name}`);
  }
}
