import assert from "node:assert/strict";
import type { TestContext } from "node:test";
import { CaySandboxError } from "../../src/index.js";
import type { Shared } from "../suite.js";

/** Expects a CaySandboxError and answers it. */
export async function fails(promise: Promise<unknown> | PromiseLike<unknown>): Promise<CaySandboxError> {
  try {
    await promise;
  } catch (error) {
    assert.ok(error instanceof CaySandboxError, `a CaySandboxError instead of ${String(error)}`);
    return error;
  }
  return assert.fail("it succeeded");
}

/** Skips a test whose operation the server does not have. */
export function needs(t: TestContext, shared: Shared, method: string, path: string): boolean {
  if (shared.target.has(method, path)) return true;
  t.skip(`the server has no ${method} ${path}`);
  return false;
}

export async function collect<T>(items: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const item of items) all.push(item);
  return all;
}

/** Asks until it is so. */
export async function until(condition: () => Promise<boolean> | boolean, what: string): Promise<void> {
  for (const deadline = Date.now() + 60_000; !(await condition()); await new Promise((resolve) => setTimeout(resolve, 20))) {
    if (Date.now() > deadline) assert.fail(`not within a minute: ${what}`);
  }
}
