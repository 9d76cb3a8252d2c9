import assert from "node:assert/strict";
import { describe, it } from "node:test";
import type { Shared } from "../suite.js";
import { collect, fails, needs, until } from "./expect.js";
import { textOf } from "./exec.js";

const path = "/v1/sandboxes/{id}/processes";

export function processTests(shared: Shared): void {
  describe("processes", () => {
    it("are started by name, listed, followed and waited for", async (t) => {
      if (!needs(t, shared, "POST", path)) return;
      const { processes } = shared.sandbox;
      const started = await processes.start("for i in 1 2 3; do echo $i; sleep .1; done; exit 2", { name: "counter" });
      assert.match(started.id ?? "", /^prc_/);
      assert.equal(started.name, "counter");
      assert.ok((await processes.list()).some((p) => p.id === started.id));
      assert.equal(textOf(await collect(processes.follow(started)), "stdout"), "1\n2\n3\n");
      const ended = await processes.wait(started);
      assert.equal(ended.status, "exited");
      assert.equal(ended.exitCode, 2);
    });

    it("take input while they run", async (t) => {
      if (!needs(t, shared, "POST", `${path}/{process}/stdin`)) return;
      const { processes } = shared.sandbox;
      const cat = await processes.start(["cat"], { stdinOpen: true });
      assert.deepEqual(await processes.sendStdin(cat, "one\n"), { stdinOffset: 4 });
      assert.deepEqual(await processes.sendStdin(cat, "one\ntwo\n", { offset: 0 }), { stdinOffset: 8 });
      await processes.closeStdin(cat);
      assert.equal((await processes.wait(cat)).exitCode, 0);
      const logs = await processes.logs(cat);
      assert.equal(logs.stdout, "one\ntwo\n");
      assert.equal(logs.nextOffset, logs.size);
      assert.equal((await fails(processes.sendStdin(cat, "late"))).status, 409);
    });

    it("have logs that are read in pages, as text and as bytes", async (t) => {
      if (!needs(t, shared, "GET", `${path}/{process}/logs`)) return;
      const { processes } = shared.sandbox;
      const started = await processes.start("seq 1 1000");
      await processes.wait(started);
      let text = "";
      for (let offset = 0; ; ) {
        const page = await processes.logs(started, { offset, limit: 1000 });
        text += page.stdout;
        offset = page.nextOffset;
        if (offset === page.size) break;
      }
      assert.equal(text, Array.from({ length: 1000 }, (_, i) => `${i + 1}\n`).join(""));
      const exact = await processes.logs(started, { encoding: "base64" });
      assert.equal(Buffer.from(exact.stdoutBytes ?? []).toString(), text);
    });

    it("that cannot start say so", async (t) => {
      if (!needs(t, shared, "POST", path)) return;
      const started = await shared.sandbox.processes.start(["/nope"]);
      await until(async () => (await shared.sandbox.processes.get(started)).status === "failed", "the process failed");
      assert.equal((await shared.sandbox.processes.get(started)).exitCode, 127);
    });

    it("are killed with what they started, once or twice", async (t) => {
      if (!needs(t, shared, "POST", path)) return;
      const { processes } = shared.sandbox;
      const started = await processes.start("sleep 100 & wait");
      await processes.kill(started);
      assert.equal((await processes.wait(started)).signal, "KILL");
      await processes.kill(started);
    });

    it("are waited for no longer than asked", async (t) => {
      if (!needs(t, shared, "GET", `${path}/{process}/wait`)) return;
      const { processes } = shared.sandbox;
      const started = await processes.start("sleep 100");
      assert.equal((await processes.wait(started, { timeout: 0.2 })).status, "running");
      await processes.kill(started);
    });

    it("that are unknown are not found", async () => {
      const error = await fails(shared.sandbox.processes.get("prc_00000000000000000000000000"));
      assert.equal(error.status, 404);
      assert.equal(error.reason, "not_found");
    });
  });
}
