import assert from "node:assert/strict";
import { describe, it } from "node:test";
import type { Shared } from "../suite.js";
import { collect, fails, needs } from "./expect.js";
import { textOf } from "./exec.js";

const route = "/v1/sandboxes/{id}/code";
const contexts = "/v1/sandboxes/{id}/contexts";

export function codeTests(shared: Shared): void {
  describe("code", () => {
    it("answers output, changed files and what it left in /output", async (t) => {
      if (!needs(t, shared, "POST", route)) return;
      const result = await shared.sandbox.runCode("print(6*7)\nopen('made.txt','w').write('m')\nopen('/workspace/made2.txt','w').write('m')" + (
        "fake" in shared.target ? "" : "\nopen('/output/o.txt','w').write('left')"));
      assert.equal(result.stdout, "42\n");
      assert.equal(result.ok || "fake" in shared.target, true);
      assert.equal(result.language, "python");
      assert.equal(result.contextId, null);
      assert.ok(result.filesChanged.some((file) => file.path === "/workspace/made.txt" && file.op === "create" && file.size === 1));
      if ("fake" in shared.target) return;
      const output = result.outputs.find((file) => file.path === "/output/o.txt");
      assert.equal(new TextDecoder().decode(output?.data), "left");
    });

    it("that fails is a result", async (t) => {
      if (!needs(t, shared, "POST", route)) return;
      const result = await shared.sandbox.runCode("raise ValueError('no')");
      assert.equal(result.ok, false);
      assert.equal(result.exitCode, 1);
      assert.match(result.stderr, /ValueError: no/);
    });

    it("runs in other languages, and says which there are", async (t) => {
      if (!needs(t, shared, "POST", route)) return;
      assert.equal((await shared.sandbox.runCode("echo $((1+1))", { language: "bash" })).stdout, "2\n");
      assert.equal((await fails(shared.sandbox.runCode("x", { language: "cobol" }))).status, 422);
    });

    it("streams, and ends with its result", async (t) => {
      if (!needs(t, shared, "POST", route)) return;
      const events = await collect(shared.sandbox.runCodeStream("print('live')"));
      assert.deepEqual([...new Set(events.map((event) => event.type))], ["start", "stdout", "exit", "result"]);
      assert.equal(textOf(events, "stdout"), "live\n");
      const last = events[events.length - 1];
      assert.ok(last?.type === "result" && Array.isArray(last.filesChanged) && last.language === "python");
    });

    it("reads input while it runs", async (t) => {
      if (!needs(t, shared, "GET", route)) return;
      const live = await shared.sandbox.runCodeWs("print('hello ' + input())", { transport: "builtin" });
      await live.sendStdin("you\n");
      const result = await live.wait();
      assert.equal(result.stdout, "hello you\n");
      assert.equal(result.language, "python");
      assert.equal(result.executionCount, 0);
    });
  });

  describe("contexts", () => {
    it("keep their state, apart from each other, and show results", async (t) => {
      if (!needs(t, shared, "POST", contexts)) return;
      const { sandbox } = shared;
      const a = await sandbox.contexts.create({ language: "python" });
      const b = await sandbox.contexts.create();
      assert.match(a.id, /^ctx_/);
      await sandbox.runCode("x = 40", { contextId: a.id });
      await sandbox.contexts.runCode(b, "x = 1");
      const result = await sandbox.contexts.runCode(a, "print('said'); x + 2");
      assert.equal(result.stdout, "said\n");
      assert.equal(result.contextId, a.id);
      assert.equal(result.executionCount, 2);
      const main = result.results.find((r) => r.isMain);
      assert.equal(main?.["text/plain"], "42");
      assert.ok((await sandbox.contexts.list()).some((context) => context.id === b.id));
      await sandbox.contexts.delete(b);
      assert.equal((await fails(sandbox.contexts.get(b))).status, 404);
    });

    it("survive an error, and say what it was", async (t) => {
      if (!needs(t, shared, "POST", contexts)) return;
      const { sandbox } = shared;
      const context = await sandbox.contexts.create();
      const failed = await sandbox.contexts.runCode(context, "y = 1\n1/0");
      assert.equal(failed.ok, false);
      assert.equal(failed.exitCode, 1);
      assert.equal(failed.error?.name, "ZeroDivisionError");
      assert.equal((await sandbox.contexts.runCode(context, "y")).results[0]?.["text/plain"], "1");
    });

    it("are interrupted, keep their state, and lose it when they are restarted", async (t) => {
      if (!needs(t, shared, "POST", `${contexts}/{context}/interrupt`)) return;
      const { sandbox } = shared;
      const context = await sandbox.contexts.create();
      await sandbox.contexts.runCode(context, "z = 5");
      const events = sandbox.contexts.runCodeStream(context, "import time\nprint('in', flush=True)\ntime.sleep(60)");
      let interrupted: Promise<unknown> | undefined;
      const poke = setInterval(() => void (interrupted = sandbox.contexts.interrupt(context)), 500);
      const last = (await collect(events)).pop();
      clearInterval(poke);
      await interrupted;
      assert.ok(last?.type === "result" && last.error?.name === "KeyboardInterrupt", JSON.stringify(last));
      assert.equal((await sandbox.contexts.runCode(context, "z")).results[0]?.["text/plain"], "5");
      await sandbox.contexts.restart(context);
      assert.equal((await sandbox.contexts.runCode(context, "z")).error?.name, "NameError");
    });
  });
}
