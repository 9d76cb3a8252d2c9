// What goes wrong, and what is kept within bounds.
import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { toolbox, until } from "./checks.mjs";
import { apiKey, matrix, overHTTP, url } from "./clients.mjs";

const unknown = "sbx_00000000000000000000000000";

describe("faults and bounds", { concurrency: 2, timeout: 900_000 }, () => {
  for (const [number, way] of matrix.filter((way) => !way.older).entries()) {
    describe(way.name, { concurrency: 1 }, () => {
      let c;
      before(async () => (c = await toolbox(await way.open({ conversation: `faults-${number}` }))));
      after(async () => {
        await c?.call("close_sandbox");
        await c?.close();
      });

      it("answers what cannot be done as results with a reason and advice", async () => {
        for (const name of ["get_sandbox", "close_sandbox"]) {
          const { reason, text } = await c.fail(name, { sandbox_id: unknown });
          assert.equal(reason, "not_found");
          assert.match(text, /list_sandboxes/);
        }
        for (const [name, args] of [["run_code", { code: "1" }], ["run_command", { command: "true" }]]) {
          assert.equal((await c.fail(name, { ...args, sandbox_id: unknown })).reason, "not_found");
        }
      });

      it("says which argument is wrong", async () => {
        for (const [name, args, says] of [
          ["run_code", {}, /code/],
          ["run_code", { code: 7 }, /code/],
          ["run_code", { code: "1", launguage: "python" }, /launguage/],
          ["run_code", { code: "1", language: "klingon" }, /klingon|language/],
          ["run_command", { command: "" }, /command/],
          ["run_command", { command: "true", timeout_seconds: -1 }, /timeout_seconds/],
          ["run_command", { command: "true", cwd: "relative" }, /cwd/],
          ["list_sandboxes", { limit: 1e9 }, /limit/],
          ["create_sandbox", { on_timeout: "explode" }, /on_timeout/],
        ]) {
          const failed = await c.fail(name, args);
          assert.match(failed.reason, /^(invalid_request|unprocessable)$/, `${name} ${JSON.stringify(args)}: ${failed.text}`);
          assert.match(failed.text, says);
        }
      });

      it("says of a sandbox that has ended that it is gone", async () => {
        const { sandbox_id } = await c.succeed("create_sandbox", { ttl_seconds: 600 });
        await c.succeed("close_sandbox", { sandbox_id });
        for (const [name, args] of [["run_code", { code: "1" }], ["run_command", { command: "true" }]]) {
          const { reason, text } = await c.fail(name, { ...args, sandbox_id });
          assert.equal(reason, "gone");
          assert.match(text, /create_sandbox/);
        }
      });

      it("takes an unknown tool for a fault of the protocol", async () => {
        await assert.rejects(c.call("brew_coffee"), (error) => error.code === -32602 && /brew_coffee/.test(error.message));
      });

      it("kills a command whose call is canceled", async () => {
        const abort = new AbortController();
        const marker = `86400.${number}${Date.now()}`;
        const running = async () => (await c.succeed("run_command", { command: `cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o '[s]leep ${marker}' || true` })).stdout !== "";
        const call = c.call("run_command", { command: `echo it has begun; sleep ${marker}`, timeout_seconds: 3600 }, {
          signal: abort.signal,
          onprogress: ({ message }) => /it has begun/.test(message) && abort.abort("enough"),
        });
        await assert.rejects(call, /enough/);
        await until("the command is killed", async () => !(await running()));
      });

      it("interrupts a program whose call is canceled, and keeps its variables", async () => {
        const { sandbox_id } = await c.succeed("run_code", { code: "kept = 7" });
        const abort = new AbortController();
        const call = c.call("run_code", { code: "import time\nprint('it has begun', flush=True)\ntime.sleep(86400)", timeout_seconds: 3600 }, {
          signal: abort.signal,
          onprogress: ({ message }) => /it has begun/.test(message) && abort.abort("enough"),
        });
        await assert.rejects(call, /enough/);
        const after = await c.succeed("run_code", { code: "kept" }); // waits for the interpreter to be free
        assert.deepEqual([after.sandbox_id, after.results[0].text], [sandbox_id, "7"]);
      });

      it("bounds what a program with much output answers, and has the rest", async () => {
        const { stdout, stdout_bytes, stdout_truncated, process_id, parts } = await c.succeed("run_command", { command: "echo first; head -c 5000000 /dev/zero | tr '\\0' x; echo; echo last" });
        assert.equal(stdout_bytes, 5_000_012);
        assert.equal(stdout_truncated, true);
        assert.ok(stdout.length < 20_000, `${stdout.length} characters`);
        assert.match(stdout, /^first\n[^]*left out[^]*\nlast\n$/);
        assert.ok(JSON.stringify(parts).length < 30_000);
        assert.ok(parts[0].text.includes(process_id), "where the rest is");
        const page = await c.succeed("process_output", { process_id, offset: 2_500_000, max_bytes: 1000 });
        assert.deepEqual([page.stdout, page.next_offset, page.size_bytes, page.complete], ["x".repeat(1000), 2_501_000, 5_000_012, false]);
        const code = await c.succeed("run_code", { code: "print('x' * 5_000_000)" });
        assert.deepEqual([code.stdout_bytes, code.stdout_truncated, code.stdout.length < 20_000], [5_000_001, true, true]);
      });
    });
  }

  it("makes one default sandbox, however many calls of however many clients race for it", async () => {
    const clients = await Promise.all([...overHTTP, ...overHTTP].map(async (way) => toolbox(await way.open({ conversation: "race" }))));
    try {
      const calls = clients.flatMap((c) => [c.succeed("run_command", { command: "true" }), c.succeed("run_code", { code: "1" }), c.succeed("get_sandbox")]);
      const ids = new Set((await Promise.all(calls)).map((result) => result.sandbox_id));
      assert.equal(ids.size, 1, [...ids].join(" "));
    } finally {
      await clients[0].call("close_sandbox");
      await Promise.all(clients.map((c) => c.close()));
    }
  });

  it("keeps conversations apart, whatever names them", async () => {
    const [way] = overHTTP;
    const named = await Promise.all([{}, { conversation: "a" }, { path: "/mcp?conversation=a" }, { conversation: "b" }].map(async (options) => toolbox(await way.open(options))));
    try {
      const [own, a, alsoA, b] = await Promise.all(named.map(async (c) => (await c.succeed("get_sandbox")).sandbox_id));
      assert.equal(alsoA, a);
      assert.equal(new Set([own, a, b]).size, 3);
      await named[1].succeed("run_code", { code: "secret = 1" });
      assert.equal((await named[3].succeed("run_code", { code: "secret" })).error.name, "NameError");
    } finally {
      await Promise.all([0, 1, 3].map((i) => named[i].call("close_sandbox")));
      await Promise.all(named.map((c) => c.close()));
    }
  });

  it("leaves calls of tools on record, as any other use of the API", async () => {
    const c = await toolbox(await overHTTP[0].open({ conversation: "record" }));
    const read = async (path) => (await (await fetch(new URL(path, url), { headers: { authorization: `Bearer ${apiKey}` } })).json()).items;
    try {
      const { sandbox_id, process_id } = await c.succeed("run_command", { command: "echo for the record" });
      const record = await until("the history has it", async () => (await read(`/v1/history?kind=exec&sandbox_id=${sandbox_id}`)).find((item) => item.id === process_id));
      assert.deepEqual([record.outcome, record.exit_code, record.stdout_bytes, /^key_/.test(record.key_id)], ["exited", 0, 15, true]);
      const made = await until("the audit log has it", async () => (await read(`/v1/audit?action=create-sandbox&object=${sandbox_id}`))[0]);
      assert.equal(made.key_id, record.key_id);
    } finally {
      await c.call("close_sandbox");
      await c.close();
    }
  });

  describe("cay mcp", () => {
    const [way] = matrix.filter((way) => way.transport === "stdio");

    it("has a conversation of its own, whose default sandbox ends with it", async () => {
      const [one, two] = await Promise.all([way.open(), way.open()].map(async (opening) => toolbox(await opening)));
      const [first, second] = [(await one.succeed("get_sandbox")).sandbox_id, (await two.succeed("get_sandbox")).sandbox_id];
      assert.notEqual(first, second);
      await one.close();
      await until("the first one's sandbox ends", async () => ["TERMINATING", "TERMINATED"].includes((await two.succeed("get_sandbox", { sandbox_id: first })).status));
      assert.equal((await two.succeed("get_sandbox")).sandbox_id, second);
      await two.close();
    });

    it("shares a named conversation's sandbox with HTTP", async () => {
      const [stdio, http] = await Promise.all([way, overHTTP[0]].map(async (way) => toolbox(await way.open({ conversation: "shared" }))));
      await stdio.succeed("run_code", { code: "shared = 'by both'" });
      assert.equal((await http.succeed("run_code", { code: "shared" })).results[0].text, "'by both'");
      await http.close();
      await stdio.close();
    });

    it("answers with a wrong key, or where no server is, what the user can do", async () => {
      for (const [options, reason] of [[{ key: `cay_${"0".repeat(64)}` }, "unauthorized"], [{ at: "http://127.0.0.1:9" }, "unreachable"]]) {
        const c = await toolbox(await way.open({ ...options, quiet: true }));
        const failed = await c.fail("run_code", { code: "1" });
        assert.equal(failed.reason, reason);
        assert.match(failed.text, /user/);
        await c.close();
      }
    });
  });

  describe("the door of HTTP", () => {
    const ping = { jsonrpc: "2.0", id: 1, method: "ping" };
    const post = (body, headers = {}, path = "/mcp") =>
      fetch(new URL(path, url), {
        method: "POST", body: typeof body === "string" ? body : JSON.stringify(body),
        headers: { "content-type": "application/json", accept: "application/json, text/event-stream", authorization: `Bearer ${apiKey}`, ...headers },
      });

    it("lets in who has a key, whatever the client", async () => {
      assert.equal((await post(ping)).status, 200);
      for (const headers of [{ authorization: "" }, { authorization: "Bearer wrong" }, { authorization: `Bearer cay_${"0".repeat(64)}` }]) {
        const refused = await post(ping, headers);
        assert.equal(refused.status, 401);
        assert.match(refused.headers.get("www-authenticate"), /^Bearer/);
        assert.equal((await refused.json()).reason, "unauthorized");
      }
      for (const way of overHTTP) await assert.rejects(way.open({ key: `cay_${"0".repeat(64)}` }), /401/);
    });

    it("serves POST alone", async () => {
      for (const method of ["GET", "DELETE", "PUT"]) {
        const refused = await fetch(new URL("/mcp", url), { method, headers: { accept: "text/event-stream", authorization: `Bearer ${apiKey}` } });
        assert.equal(refused.status, 405);
        assert.equal(refused.headers.get("allow"), "POST");
      }
    });

    it("refuses pages of other sites", async () => {
      assert.equal((await post(ping, { origin: "https://evil.example" })).status, 403);
      assert.equal((await post(ping, { origin: url })).status, 200);
    });

    it("refuses what is no message, no conversation, or too long", async () => {
      const broken = await post("{");
      assert.equal(broken.status, 400);
      assert.equal((await post(ping, { "cay-conversation": "not a name" })).status, 400);
      assert.equal((await post(ping, {}, "/mcp?conversation=a&conversation=b")).status, 400);
      assert.equal((await post(ping, { "cay-conversation": "a" }, "/mcp?conversation=b")).status, 400);
      const long = await post({ ...ping, params: { x: "x".repeat(5 << 20) } });
      assert.equal(long.status, 413);
      assert.equal((await long.json()).reason, "payload_too_large");
      const unsupported = await post(ping, { "mcp-protocol-version": "1999-01-01" });
      assert.equal(unsupported.status, 400);
    });

    it("speaks JSON-RPC", async () => {
      const notified = await post({ jsonrpc: "2.0", method: "notifications/initialized" });
      assert.deepEqual([notified.status, await notified.text()], [202, ""]);
      for (const [message, code] of [[{ jsonrpc: "2.0", id: 1, method: "prompts/list" }, -32601], [{ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: "no_such" } }, -32602]]) {
        assert.match(await (await post(message)).text(), new RegExp(`"code":${code}`), JSON.stringify(message));
      }
      assert.ok([200, 400, 404].includes((await post({ jsonrpc: "2.0", id: 1, method: "no/such" })).status));
      assert.ok([400, 406].includes((await post(ping, { accept: "text/plain" })).status));
      assert.equal((await post(ping, { "content-type": "text/plain" })).status, 415);
    });

    it("counts calls", async () => {
      const metrics = await (await fetch(new URL("/metrics", url), { headers: { authorization: `Bearer ${apiKey}` } })).text();
      assert.match(metrics, /^cay_mcp_calls_total\{result="ok",tool="run_command"\} [1-9]/m);
      assert.doesNotMatch(metrics, /brew_coffee/);
    });
  });
});
