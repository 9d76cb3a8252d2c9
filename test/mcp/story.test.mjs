// Every tool, as the clients use them, over each transport and in each revision.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, describe, it } from "node:test";
import { fetchByName, pngIn, text, toolbox, until } from "./checks.mjs";
import { matrix } from "./clients.mjs";
import { chart, picture, pictureFile } from "./programs.mjs";
import { tools } from "./tools.mjs";

it("the documentation names every tool", () => {
  const page = readFileSync(new URL("../../docs/how-to/mcp.md", import.meta.url), "utf8");
  const rows = page.slice(page.indexOf("## The tools"), page.indexOf("## The default sandbox")).match(/^\| `[^|]*/gm);
  assert.deepEqual(rows.flatMap((row) => [...row.matchAll(/`(\w+)`/g)].map(([, name]) => name)).sort(), Object.keys(tools).sort());
});

describe("every tool", { concurrency: 3, timeout: 900_000 }, () => {
  for (const [number, way] of matrix.entries()) story(number, way);
});

function story(number, way) {
  describe(way.name, { concurrency: 1 }, () => {
    let c;
    before(async () => (c = await toolbox(await way.open({ conversation: `story-${number}` }))));
    after(async () => {
      await c?.call("close_sandbox");
      await c?.close();
    });

    it(`speaks ${way.revision}`, () => {
      assert.equal(c.revision, way.revision);
      assert.equal(c.server.name, "cay");
      assert.deepEqual(c.capabilities, { tools: {} });
      assert.match(c.instructions, /sandbox/);
    });

    it("offers the documented tools", async () => {
      const offered = await c.list();
      assert.deepEqual(offered.map((tool) => tool.name).sort(), Object.keys(tools).sort());
      for (const { name, title, description, annotations, inputSchema } of offered) {
        assert.deepEqual(annotations, { title: annotations.title, ...tools[name] }, name);
        assert.ok(title ?? annotations.title, name);
        assert.ok(description.length > 20, name);
        assert.equal(inputSchema.additionalProperties, false, name);
        assert.ok(c.ajv.compile(inputSchema), name);
        for (const [property, schema] of Object.entries(inputSchema.properties ?? {})) assert.ok(schema.description, `${name}: ${property} is explained`);
      }
    });

    it("runs code that keeps its state", async () => {
      const first = await c.succeed("run_code", { code: "x = 41" });
      const second = await c.succeed("run_code", { code: "print('counting')\nx + 1", sandbox_id: first.sandbox_id });
      assert.equal(second.results[0].text, "42");
      assert.equal(second.stdout, "counting\n");
      assert.equal(second.sandbox_id, first.sandbox_id);
      assert.match(text(second.parts), /counting[^]*42/);
      const failed = await c.succeed("run_code", { code: "x / 0" });
      assert.equal(failed.error.name, "ZeroDivisionError");
      assert.equal(failed.ok, false);
      assert.match(text(failed.parts), /ZeroDivisionError/);
      const shown = await c.succeed("run_code", { code: pictureFile("/output/kept.png") });
      pngIn(shown.parts);
      assert.deepEqual(shown.outputs.map((file) => [file.path, file.mime, file.shown]), [["/output/kept.png", "image/png", true]]);
      assert.equal((await c.succeed("run_code", { code: "let x = 1; x + 1", language: "javascript" })).results[0].text, "2");
    });

    it("draws a chart with one call, and shows it from a file as well", async () => {
      const drawn = pngIn((await c.succeed("run_code", { code: number === 0 ? chart : picture })).parts); // the library costs seconds to load
      assert.ok(drawn.width >= 100 && drawn.height >= 100);
      await c.succeed("run_code", { code: pictureFile("/workspace/chart.png") });
      const read = await c.succeed("read_file", { path: "chart.png" });
      assert.equal(read.encoding, "image");
      pngIn(read.parts);
    });

    it("runs a command and tells how it goes on", async () => {
      const told = [];
      const { exit_code, ok, stdout } = await c.succeed("run_command", { command: "for i in 1 2 3; do echo step $i; sleep 1; done" }, { onprogress: (p) => told.push(p) });
      assert.deepEqual({ exit_code, ok, stdout }, { exit_code: 0, ok: true, stdout: "step 1\nstep 2\nstep 3\n" });
      assert.ok(told.length > 0);
      assert.ok(told.every((p, i) => i === 0 || p.progress > told[i - 1].progress), JSON.stringify(told));
      assert.match(told.at(-1).message, /step \d/);
    });

    it("takes a command that fails for a result", async () => {
      const { exit_code, ok, stderr, parts } = await c.succeed("run_command", { command: "cat; echo $WORD >&2; exit 3", stdin: "in\n", env: { WORD: "out" }, cwd: "/tmp" });
      assert.deepEqual({ exit_code, ok, stderr }, { exit_code: 3, ok: false, stderr: "out\n" });
      assert.match(parts[0].text, /exit code 3/);
      assert.equal((await c.succeed("run_command", { command: "sleep 600", timeout_seconds: 0.5 })).timed_out, true);
    });

    it("keeps processes in the background", async () => {
      const script = "echo one; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo two; exec sleep 600";
      const { process_id, status } = await c.succeed("start_process", { command: script, name: "clock" });
      assert.equal(status, "running");
      const begun = await until("the first line", async () => {
        const page = await c.succeed("process_output", { process_id, wait_seconds: 10 });
        return page.stdout !== "" && page;
      });
      assert.deepEqual([begun.stdout, begun.next_offset, begun.complete], ["one\n", 4, false]);
      await c.succeed("run_command", { command: "touch /tmp/go" });
      const next = await until("the second line, by name", async () => {
        const page = await c.succeed("process_output", { process_id: "clock", offset: begun.next_offset, wait_seconds: 10 });
        return page.stdout !== "" && page;
      });
      assert.deepEqual([next.stdout, next.status], ["two\n", "running"]);
      const stopped = await c.succeed("stop_process", { process_id });
      assert.deepEqual([stopped.status, stopped.signal, stopped.exit_code], ["exited", "TERM", 143]);
      assert.equal((await c.succeed("stop_process", { process_id })).status, "exited");
      assert.equal((await c.succeed("process_output", { process_id, offset: next.next_offset })).complete, true);
    });

    it("writes, reads, lists, moves and deletes files", async () => {
      const lines = Array.from({ length: 100 }, (_, i) => `line ${i + 1}, ж\n`).join("");
      assert.equal((await c.succeed("write_file", { path: "notes/today.txt", content: lines, mode: "0600" })).path, "/workspace/notes/today.txt");
      assert.equal((await c.succeed("read_file", { path: "/workspace/notes/today.txt" })).content, lines);
      const some = await c.succeed("read_file", { path: "notes/today.txt", start_line: 3, end_line: 4 });
      assert.deepEqual([some.content, some.start_line, some.end_line, some.more], ["line 3, ж\nline 4, ж\n", 3, 4, true]);
      assert.equal((await c.fail("write_file", { path: "notes/today.txt", content: "x", create_only: true })).reason, "precondition_failed");
      const bytes = Buffer.from([0, 255, 1, 254]).toString("base64");
      await c.succeed("write_file", { path: "notes/bytes", content_base64: bytes });
      const binary = await c.succeed("read_file", { path: "notes/bytes" });
      assert.deepEqual([binary.encoding, binary.content], ["base64", bytes]);
      await c.succeed("move_file", { from: "notes/bytes", to: "notes/moved" });
      const { entries } = await c.succeed("list_files", { path: "notes" });
      assert.deepEqual(entries.map((e) => [e.path, e.type, e.size_bytes, e.mode]).sort(), [
        ["/workspace/notes/moved", "file", 4, "0644"], ["/workspace/notes/today.txt", "file", Buffer.byteLength(lines), "0600"],
      ]);
      await c.succeed("delete_file", { path: "notes/moved" });
      assert.notEqual((await c.fail("delete_file", { path: "notes" })).reason, "internal");
      await c.succeed("delete_file", { path: "notes", recursive: true });
      assert.equal((await c.fail("read_file", { path: "notes/today.txt" })).reason, "not_found");
    });

    it("carries files by signed URLs, and small ones itself", async () => {
      const sent = "by hand\n".repeat(100_000);
      const upload = await c.succeed("upload_file", { path: "sent.txt" });
      assert.ok((await fetch(upload.url, { method: "PUT", body: sent })).ok);
      assert.match(upload.command, /^curl /);
      const download = await c.succeed("download_file", { path: "sent.txt" });
      assert.deepEqual([download.embedded, download.size_bytes], [false, sent.length]);
      assert.equal(await (await fetch(download.url)).text(), sent);
      assert.equal(download.parts.find((part) => part.type === "resource_link").uri, download.url);
      assert.equal((await c.succeed("upload_file", { path: "small", data_base64: Buffer.from("small").toString("base64") })).written, true);
      const small = await c.succeed("download_file", { path: "small" });
      assert.equal(small.embedded, true);
      const { resource } = small.parts.find((part) => part.type === "resource");
      assert.equal(resource.text ?? Buffer.from(resource.blob, "base64").toString(), "small");
      assert.equal(await (await fetch((await c.succeed("download_file", { path: "small", url_only: true })).url)).text(), "small");
    });

    it("gives a server's port a URL", async () => {
      await c.succeed("write_file", { path: "site/index.html", content: "served from inside" });
      await c.succeed("start_process", { command: "exec python3 -m http.server --bind 127.0.0.1 8000", cwd: "/workspace/site" });
      const port = await c.succeed("get_port_url", { port: 8000 });
      const served = await until("the server answers", async () => {
        const { status, body } = await fetchByName(port.url, { [port.token_header]: port.token });
        return status === 200 && body;
      });
      assert.equal(served, "served from inside");
      assert.equal((await fetchByName(port.url)).status, 401);
      const open = await c.succeed("get_port_url", { port: 8000, public: true });
      assert.equal(open.url, port.url);
      assert.equal((await fetchByName(open.url)).body, "served from inside");
    });

    it("keeps files in sessions, from sandbox to sandbox", async () => {
      const name = `story-${number}-${Date.now()}`;
      const { session_id } = await c.succeed("create_session", { name, disk_gb: 0.2, ttl_seconds: 3600 });
      assert.deepEqual((await c.succeed("list_sessions", { name })).sessions.map((s) => s.session_id), [session_id]);
      const first = await c.succeed("create_sandbox", { session_id, ttl_seconds: 600 });
      await c.succeed("run_command", { sandbox_id: first.sandbox_id, command: "echo kept > /session/file" });
      await c.succeed("close_sandbox", { sandbox_id: first.sandbox_id });
      const second = await c.succeed("create_sandbox", { session_id, ttl_seconds: 600 });
      assert.equal((await c.succeed("read_file", { sandbox_id: second.sandbox_id, path: "/session/file" })).content, "kept\n");
      await c.succeed("close_sandbox", { sandbox_id: second.sandbox_id });
    });

    it("makes sandboxes, lists them and ends them", async () => {
      const name = `of ${way.name}`;
      const made = await c.succeed("create_sandbox", { metadata: { name }, ttl_seconds: 600 });
      assert.equal(made.status, "READY");
      const { sandboxes } = await c.succeed("list_sandboxes", { metadata: { name } });
      assert.deepEqual(sandboxes.map((s) => s.sandbox_id), [made.sandbox_id]);
      assert.equal((await c.succeed("get_sandbox", { sandbox_id: made.sandbox_id })).status, "READY");
      const other = await c.succeed("run_command", { command: "echo there", sandbox_id: made.sandbox_id });
      assert.deepEqual([other.sandbox_id, other.stdout], [made.sandbox_id, "there\n"]);
      assert.equal((await c.succeed("close_sandbox", { sandbox_id: made.sandbox_id })).sandbox_id, made.sandbox_id);
      assert.deepEqual((await c.succeed("list_sandboxes", { metadata: { name } })).sandboxes, []);
    });

    it("makes another default sandbox once the first was closed", async () => {
      const first = await c.succeed("get_sandbox");
      assert.equal((await c.succeed("close_sandbox")).sandbox_id, first.sandbox_id);
      const second = await c.succeed("run_command", { command: "echo anew" });
      assert.notEqual(second.sandbox_id, first.sandbox_id);
      assert.equal(second.stdout, "anew\n");
    });
  });
}
