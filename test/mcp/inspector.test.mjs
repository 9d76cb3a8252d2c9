// The inspector's command line: it lists the tools and calls every one of them, over HTTP and stdio.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { pngIn, text } from "./checks.mjs";
import { apiKey, bin, url } from "./clients.mjs";
import { picture } from "./programs.mjs";
import { tools } from "./tools.mjs";

const program = fileURLToPath(import.meta.resolve("@modelcontextprotocol/inspector/package.json").replace("package.json", "clients/cli/build/index.js"));
const { runCli } = await import(program);

describe("the inspector's command line", { concurrency: 1, timeout: 600_000 }, () => {
  let dir;
  before(() => {
    dir = mkdtempSync(join(tmpdir(), "cay-mcp-inspector-"));
    process.env.HOME = dir; // where it keeps what it has stored
  });
  after(() => rmSync(dir, { recursive: true, force: true }));

  const conversation = "inspector";
  const ways = {
    HTTP: (era) => ["--server-url", `${url}/mcp`, "--transport", "http", "--header", `Authorization: Bearer ${apiKey}`, `Cay-Conversation: ${conversation}`, "--protocol-era", era],
    stdio: (era) => ["--config", join(dir, "servers.json"), "--server", "cay", "--protocol-era", era],
  };
  before(() => {
    const cay = { type: "stdio", command: bin, args: ["mcp", "--conversation", conversation, "--keep"], env: { CAY_URL: url, CAY_API_KEY: apiKey } };
    writeFileSync(join(dir, "servers.json"), JSON.stringify({ mcpServers: { cay } }));
  });

  for (const [name, way] of Object.entries(ways)) {
    describe(`over ${name}`, { concurrency: 1 }, () => {
      const inspect = async (era, ...args) => (await promisify(execFile)(process.execPath, [program, ...way(era), ...args, "--format", "json", "--quiet"])).stdout;

      it("lists the tools, and finds nothing in their schemas that some client could not take", async () => {
        const { result } = JSON.parse(await inspect("modern", "--method", "tools/list", "--strict"));
        assert.deepEqual(result.tools.map((tool) => tool.name).sort(), Object.keys(tools).sort());
      });

      it("says by its exit code that a tool failed, and why", async () => {
        await assert.rejects(inspect("modern", "--method", "tools/call", "--tool-name", "run_code"), (error) => error.code === 5 && /invalid_request: .*code/.test(error.stdout));
      });

      // The program's entry point, called in this process: to start it costs more than all that it does.
      const called = new Set();
      const call = async (tool, args = {}, era = "modern") => {
        const output = join(dir, "result.json");
        await runCli([process.execPath, program, ...way(era), "--method", "tools/call", "--tool-name", tool, "--tool-args-json", JSON.stringify(args), "--output", output, "--quiet"]);
        const result = JSON.parse(readFileSync(output, "utf8"));
        assert.ok(!result.isError, text(result.content));
        called.add(tool);
        return { ...result.structuredContent, parts: result.content };
      };

      it("draws a chart, for clients of both eras", async () => {
        for (const era of ["legacy", "modern"]) pngIn((await call("run_code", { code: picture }, era)).parts);
      });

      it("calls every tool", async () => {
        const { sandbox_id } = await call("get_sandbox");
        assert.equal((await call("run_code", { code: "6 * 7" })).results[0].text, "42");
        const page = (await call("run_command", { command: "pwd" })).stdout;
        assert.equal(page, "/workspace\n");
        await call("write_file", { path: "a.txt", content: "written" });
        await call("move_file", { from: "a.txt", to: "b.txt" });
        assert.equal((await call("read_file", { path: "b.txt" })).content, "written");
        assert.deepEqual((await call("list_files")).entries.map((entry) => entry.path), ["/workspace/b.txt"]);
        assert.equal(await (await fetch((await call("download_file", { path: "b.txt", url_only: true })).url)).text(), "written");
        assert.ok((await fetch((await call("upload_file", { path: "b.txt" })).url, { method: "PUT", body: "sent" })).ok);
        assert.equal((await call("read_file", { path: "b.txt" })).content, "sent");
        await call("delete_file", { path: "b.txt" });
        const { process_id } = await call("start_process", { command: "echo up; exec sleep 600" });
        assert.equal((await call("process_output", { process_id, wait_seconds: 60 })).stdout, "up\n");
        assert.equal((await call("stop_process", { process_id })).status, "exited");
        assert.match((await call("get_port_url", { port: 8000 })).url, /^http/);
        const { session_id } = await call("create_session", { ttl_seconds: 3600, disk_gb: 0.2 });
        assert.ok((await call("list_sessions", { limit: 100 })).sessions.some((s) => s.session_id === session_id));
        const made = await call("create_sandbox", { ttl_seconds: 600 });
        assert.ok((await call("list_sandboxes", { limit: 100 })).sandboxes.some((s) => s.sandbox_id === made.sandbox_id));
        for (const id of [made.sandbox_id, sandbox_id]) assert.equal((await call("close_sandbox", { sandbox_id: id })).sandbox_id, id);
        assert.deepEqual([...called].sort(), Object.keys(tools).sort());
      });
    });
  }
});
