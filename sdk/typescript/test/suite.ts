// What the SDK promises, as tests that run against any server that speaks the API.
import { after, before, describe } from "node:test";
import { Sandbox } from "../src/index.js";
import { codeTests } from "./suite/code.js";
import { execTests } from "./suite/exec.js";
import { filesTests } from "./suite/files.js";
import { lifeTests } from "./suite/life.js";
import { processTests } from "./suite/processes.js";
import { historyTests } from "./suite/history.js";
import { jobTests } from "./suite/jobs.js";
import { liveTests } from "./suite/live.js";
import { sessionTests } from "./suite/sessions.js";
import type { Target } from "./target.js";

/** The server and the sandbox that the tests of a group share. */
export interface Shared {
  readonly target: Target;
  readonly sandbox: Sandbox;
}

export function suite(name: string, start: () => Promise<Target>, options: { skip?: string | undefined } = {}): void {
  describe(name, { skip: options.skip ?? false }, () => {
    let target: Target;
    let sandbox: Sandbox;
    before(async () => {
      target = await start();
      sandbox = await Sandbox.create(target.create);
    });
    after(async () => {
      await sandbox?.close();
      await target?.stop();
    });
    const shared: Shared = {
      get target() {
        return target;
      },
      get sandbox() {
        return sandbox;
      },
    };
    execTests(shared);
    liveTests(shared);
    filesTests(shared);
    processTests(shared);
    codeTests(shared);
    jobTests(shared);
    sessionTests(shared);
    historyTests(shared);
    lifeTests(shared);
  });
}
