import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import type { Shared } from "../suite.js";
import { useWebSocketShim } from "../shim.js";
import { collect, fails, until } from "./expect.js";
import { textOf } from "./exec.js";

export function liveTests(shared: Shared): void {
  describe("live processes over the builtin WebSocket", () => {
    liveTestsOver(shared, "builtin");
  });
  describe("live processes over the runtime's WebSocket", () => {
    let restore: () => void;
    before(() => (restore = useWebSocketShim()));
    after(() => restore());
    liveTestsOver(shared, "native");
  });
}

function liveTestsOver(shared: Shared, transport: "builtin" | "native"): void {
  it("sends stdin, closes it and waits for the output", async () => {
    const live = await shared.sandbox.execWs("cat; echo err >&2; exit 4", { transport });
    assert.match(live.processId, /^prc_/);
    await live.sendStdin("hello ");
    await live.sendStdin(new TextEncoder().encode("world"));
    await live.closeStdin();
    const result = await live.wait();
    assert.equal(result.stdout, "hello world");
    assert.equal(result.stderr, "err\n");
    assert.equal(result.exitCode, 4);
    assert.equal(result.ok, false);
    assert.equal(result.stdoutSize, 11);
  });

  it("yields events while it runs, and the exit last", async () => {
    const live = await shared.sandbox.execWs(["cat"], { transport });
    const seen: string[] = [];
    for await (const event of live) {
      seen.push(event.type);
      if (event.type === "start") await live.sendStdin("ping\n");
      if (event.type === "stdout") await live.closeStdin();
    }
    assert.equal(seen[0], "start");
    assert.ok(seen.includes("stdout"));
    assert.equal(seen[seen.length - 1], "exit");
    assert.equal((await live.wait()).exitCode, 0);
  });

  it("sends a megabyte of input", async () => {
    const live = await shared.sandbox.execWs("wc -c", { transport });
    await live.sendStdin(new Uint8Array(1024 * 1024));
    await live.closeStdin();
    assert.equal((await live.wait()).stdout.trim(), "1048576");
  });

  it("sends a signal", async () => {
    const live = await shared.sandbox.execWs("trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep .05; done", { transport });
    for await (const event of live) {
      if (event.type === "stdout" && event.data.includes("ready")) await live.signal("TERM");
      if (event.type === "exit") assert.equal(event.exitCode, 9);
    }
    assert.match((await live.wait()).stdout, /caught/);
  });

  it("kills the command when its signal fires", async () => {
    const controller = new AbortController();
    const live = await shared.sandbox.execWs("sleep 100 | cat", { transport, signal: controller.signal });
    const waiting = live.wait();
    const looping = collect(live);
    controller.abort();
    assert.equal((await fails(waiting)).name, "AbortError");
    assert.equal((await fails(looping)).name, "AbortError");
    await until(async () => (await shared.sandbox.processes.get(live.processId)).status !== "running", "the command was killed");
  });

  it("reports an error of the server as exec_error", async () => {
    const error = await fails(shared.sandbox.execWs("true", { transport, cwd: "/nope" }));
    assert.equal(error.reason, "exec_error");
    assert.equal(error.status, 422);
    assert.equal((error.body as { reason: string }).reason, "unprocessable");
  });

  it("is closed by leaving the loop, and the command can be attached to", async () => {
    const live = await shared.sandbox.execWs("echo one; read x; echo got $x", { transport });
    for await (const event of live) {
      if (event.type === "stdout") break;
    }
    assert.equal((await fails(live.wait())).reason, "websocket_closed");
    const again = await shared.sandbox.attach(live.processId, { transport, offset: live.offset });
    await again.sendStdin("two\n");
    const events = await collect(again);
    assert.equal(textOf(events, "stdout"), "got two\n");
  });

  it("holds a large output back for a slow reader and loses nothing", async () => {
    const live = await shared.sandbox.execWs("seq 1 300000", { transport });
    let bytes = 0;
    let slow = true;
    for await (const event of live) {
      if (event.type !== "stdout") continue;
      bytes += event.bytes.length;
      if (slow) await new Promise((resolve) => setTimeout(resolve, 300));
      slow = false;
    }
    assert.equal(bytes, Array.from({ length: 300000 }, (_, i) => String(i + 1).length + 1).reduce((a, b) => a + b));
  });

  it("waits for a large output without a loop, keeping head and tail", async () => {
    const live = await shared.sandbox.execWs("seq 1 400000", { transport, maxOutputBytes: 1000 });
    const result = await live.wait();
    assert.ok(result.stdout.startsWith("1\n2\n"));
    assert.ok(result.stdout.endsWith("400000\n"));
    assert.equal(result.truncated.stdout, true);
    assert.equal(result.ok, true);
  });

  it("opens a terminal that can be resized and left", async () => {
    const live = await shared.sandbox.terminal({ transport, cols: 100, rows: 30 });
    await live.resize(120, 40);
    await live.sendStdin("echo $((6*7))x; exit 5\n");
    const result = await live.wait();
    assert.match(result.stdout, /42x/);
    assert.equal(result.exitCode, 5);
  });
}
