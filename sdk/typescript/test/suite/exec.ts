import assert from "node:assert/strict";
import { describe, it } from "node:test";
import type { ExecEvent } from "../../src/index.js";
import type { Shared } from "../suite.js";
import { collect, fails, until } from "./expect.js";

export function execTests(shared: Shared): void {
  describe("exec", () => {
    it("answers output, sizes and exit code of a command that fails", async () => {
      const result = await shared.sandbox.exec("printf out; printf err >&2; exit 7");
      assert.equal(result.ok, false);
      assert.equal(result.exitCode, 7);
      assert.equal(result.stdout, "out");
      assert.equal(result.stderr, "err");
      assert.deepEqual([...result.stdoutBytes], [...Buffer.from("out")]);
      assert.equal(result.stdoutSize, 3);
      assert.equal(result.timedOut, false);
      assert.equal(result.reason, "exited");
      assert.equal(result.signal, null);
      assert.match(result.processId, /^prc_/);
    });

    it("takes a program and its arguments without a shell", async () => {
      const result = await shared.sandbox.exec(["printf", "%s|", "a b", "$HOME", "'"]);
      assert.equal(result.stdout, "a b|$HOME|'|");
      assert.equal(result.ok, true);
    });

    it("hands over text and bytes as stdin, and without it end of file", async () => {
      assert.equal((await shared.sandbox.exec("cat", { stdin: "日本語\n" })).stdout, "日本語\n");
      const bytes = Uint8Array.from({ length: 256 }, (_, i) => i);
      assert.deepEqual((await shared.sandbox.exec("cat", { stdin: bytes })).stdoutBytes, bytes);
      assert.equal((await shared.sandbox.exec("cat; echo done")).stdout, "done\n");
    });

    it("sets environment and directory, with values of any text", async () => {
      const value = "a=b\n'ü' ";
      const result = await shared.sandbox.exec('printf "%s|" "$A"; pwd', { env: { A: value }, cwd: "/tmp" });
      assert.ok(result.stdout.startsWith(`${value}|`), result.stdout);
      assert.ok(result.stdout.endsWith("/tmp\n"), result.stdout);
    });

    it("answers bytes that are no text exactly, and as U+FFFD in the text", async () => {
      const result = await shared.sandbox.exec("printf '\\377\\376\\000ok'");
      assert.deepEqual([...result.stdoutBytes], [0xff, 0xfe, 0, 0x6f, 0x6b]);
      assert.equal(result.stdout, "\ufffd\ufffd\0ok");
    });

    it("keeps head and tail of what exceeds the bound", async () => {
      const result = await shared.sandbox.exec("head -c 300000 /dev/zero | tr '\\0' A; echo END", { maxOutputBytes: 10000 });
      assert.equal(result.stdoutSize, 300004);
      assert.equal(result.truncated.stdout, true);
      assert.ok(result.stdout.endsWith("END\n"));
      assert.ok(result.stdoutBytes.length <= 10000);
      assert.equal((result.stdoutGap?.bytes ?? 0) + result.stdoutBytes.length, 300004);
      assert.equal(result.ok, true);
    });

    it("ends the tree at the timeout and answers the output so far", async () => {
      const result = await shared.sandbox.exec("printf partial; sleep 30 & wait", { timeout: 0.5 });
      assert.equal(result.stdout, "partial");
      assert.equal(result.timedOut, true);
      assert.equal(result.exitCode, 137);
      assert.equal(result.ok, false);
    });

    it("says 127 for a command that is not there", async () => {
      const result = await shared.sandbox.exec(["nosuchcommand"]);
      assert.equal(result.exitCode, 127);
      assert.notEqual(result.stderr, "");
    });

    it("refuses a directory that is not there with the server's error", async () => {
      const error = await fails(shared.sandbox.exec("true", { cwd: "/nope" }));
      assert.equal(error.status, 422);
      assert.equal(error.reason, "unprocessable");
      assert.match(error.message, /cwd|\/nope/);
      assert.ok(error.requestId);
      assert.equal((error.body as { reason: string }).reason, "unprocessable");
    });

    it("ends with an AbortError when its signal fires", async () => {
      const controller = new AbortController();
      const running = shared.sandbox.exec("sleep 20", { signal: controller.signal, killOnDisconnect: true });
      setTimeout(() => controller.abort(), 200);
      const error = await fails(running);
      assert.equal(error.name, "AbortError");
      assert.equal(error.reason, "aborted");
    });

    it("runs thirty at a time, each with its own code", async () => {
      const codes = await Promise.all(Array.from({ length: 30 }, (_, i) => shared.sandbox.exec(`exit ${i}`).then((r) => r.exitCode)));
      assert.deepEqual(codes, Array.from({ length: 30 }, (_, i) => i));
    });
  });

  describe("execStream", () => {
    it("yields start, output and exit as they happen", async () => {
      const events = await collect(shared.sandbox.execStream("printf a; printf b >&2; exit 3"));
      assert.equal(events[0]?.type, "start");
      assert.match((events[0] as { processId: string }).processId, /^prc_/);
      const last = events[events.length - 1] as ExecEvent & { type: "exit" };
      assert.equal(last.type, "exit");
      assert.equal(last.exitCode, 3);
      assert.equal(textOf(events, "stdout"), "a");
      assert.equal(textOf(events, "stderr"), "b");
    });

    it("decodes a character that is split over two writes", async () => {
      const events = await collect(shared.sandbox.execStream("printf 'caf\\303'; sleep .3; printf '\\251\\n'"));
      assert.equal(textOf(events, "stdout"), "café\n");
      for (const event of events) if (event.type === "stdout") assert.doesNotMatch(event.data, /\ufffd/);
    });

    it("delivers everything, byte for byte, and knows the offset", async () => {
      const events = await collect(shared.sandbox.execStream("seq 1 20000"));
      const bytes = Buffer.concat(events.flatMap((e) => (e.type === "stdout" ? [e.bytes] : [])));
      assert.equal(bytes.toString(), Array.from({ length: 20000 }, (_, i) => `${i + 1}\n`).join(""));
      const output = events.filter((e) => e.type === "stdout");
      assert.equal((output[output.length - 1] as { offset: number }).offset, bytes.length);
    });

    it("is closed by leaving the loop, and the command runs on", async () => {
      let id = "";
      for await (const event of shared.sandbox.execStream("echo first; sleep 20")) {
        if (event.type === "start") id = event.processId;
        if (event.type === "stdout") break;
      }
      assert.equal((await shared.sandbox.processes.get(id)).status, "running");
      await shared.sandbox.processes.kill(id);
      await until(async () => (await shared.sandbox.processes.get(id)).status === "exited", "the process was killed");
    });

    it("ends with an AbortError when its signal fires within the loop", async () => {
      const controller = new AbortController();
      const error = await fails((async () => {
        for await (const event of shared.sandbox.execStream("echo first; sleep 20", { signal: controller.signal, killOnDisconnect: true })) {
          if (event.type === "stdout") controller.abort();
        }
      })());
      assert.equal(error.name, "AbortError");
    });
  });
}

export function textOf(events: readonly { type: string; data?: unknown }[], stream: "stdout" | "stderr"): string {
  return events.filter((event) => event.type === stream).map((event) => event.data).join("");
}
