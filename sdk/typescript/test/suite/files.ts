import assert from "node:assert/strict";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { createTar, readTar } from "../../src/index.js";
import type { Shared } from "../suite.js";
import { collect, fails, needs, until } from "./expect.js";

const route = "/v1/sandboxes/{id}/files";

export function filesTests(shared: Shared): void {
  describe("files", () => {
    it("are written and read, as text, bytes and in every form of content", async () => {
      const { files } = shared.sandbox;
      const bytes = Uint8Array.from({ length: 70_000 }, (_, i) => i % 256);
      const entry = await files.write("/workspace/a/b/text.txt", "grüße\n");
      assert.equal(entry.path, "/workspace/a/b/text.txt");
      assert.equal(entry.type, "file");
      assert.equal(entry.size, 8);
      assert.equal(await files.readText("/workspace/a/b/text.txt"), "grüße\n");
      const forms: [string, Parameters<typeof files.write>[1]][] = [
        ["bytes", bytes],
        ["buffer", bytes.buffer],
        ["blob", new Blob([bytes as Uint8Array<ArrayBuffer>])],
        ["stream", new Blob([bytes as Uint8Array<ArrayBuffer>]).stream()],
        ["iterable", (async function* () {
          yield bytes.subarray(0, 10);
          yield bytes.subarray(10);
        })()],
      ];
      for (const [name, content] of forms) {
        await files.write(`/workspace/forms/${name}`, content);
        assert.deepEqual(await files.read(`/workspace/forms/${name}`), bytes, name);
      }
      await files.write("/workspace/empty", "");
      assert.equal((await files.read("/workspace/empty")).length, 0);
    });

    it("are read as a stream, in ranges, and only while they are the same", async () => {
      const { files } = shared.sandbox;
      await files.write("/workspace/ranges", "0123456789");
      assert.equal(await files.readText("/workspace/ranges", { offset: 2, length: 3 }), "234");
      assert.equal(await files.readText("/workspace/ranges", { offset: 7 }), "789");
      assert.equal(Buffer.concat(await collect(await files.readStream("/workspace/ranges"))).toString(), "0123456789");
      const { size, etag } = await files.head("/workspace/ranges");
      assert.equal(size, 10);
      assert.equal(await files.readText("/workspace/ranges", { ifMatch: etag ?? "" }), "0123456789");
      await files.write("/workspace/ranges", "other");
      assert.equal((await fails(files.read("/workspace/ranges", { ifMatch: etag ?? "" }))).reason, "precondition_failed");
      assert.equal((await fails(files.write("/workspace/ranges", "x", { createOnly: true }))).status, 412);
      assert.equal((await fails(files.read("/workspace/ranges", { offset: 100 }))).status, 416);
    });

    it("have names of any kind", async () => {
      const { files } = shared.sandbox;
      for (const name of ["a b", "ü日本", "new\nline", "-rf", ".env", "%2e%2e", "a?b#c&d=e+f", "x".repeat(255)]) {
        const path = `/workspace/names/${name}`;
        await files.write(path, name);
        assert.equal(await files.readText(path), name);
        assert.equal((await files.stat(path)).name, name);
      }
      assert.equal((await files.list("/workspace/names")).length, 8);
    });

    it("are listed at once and page by page, with what is below", async () => {
      const { files } = shared.sandbox;
      for (let i = 0; i < 7; i++) await files.write(`/workspace/list/${i}`, "x");
      await files.write("/workspace/list/dir/deep", "x");
      const names = (await files.list("/workspace/list", { limit: 3 })).map((entry) => entry.name);
      assert.deepEqual([...names].sort(), ["0", "1", "2", "3", "4", "5", "6", "dir"]);
      const looped: string[] = [];
      for await (const entry of files.list("/workspace/list", { limit: 2, depth: 2 })) looped.push(entry.path);
      assert.ok(looped.includes("/workspace/list/dir/deep"));
      const page = await files.list("/workspace/list", { limit: 2 }).page();
      assert.equal(page.items.length, 2);
      assert.notEqual(page.nextCursor, null);
    });

    it("keep and change their mode", async (t) => {
      const { files } = shared.sandbox;
      await files.write("/workspace/run.sh", "#!/bin/sh\necho ran\n", { mode: 0o755 });
      assert.equal((await files.stat("/workspace/run.sh")).mode, "0755");
      assert.equal((await shared.sandbox.exec("./run.sh")).stdout, "ran\n");
      if (!needs(t, shared, "POST", `${route}/chmod`)) return;
      assert.equal((await files.chmod("/workspace/run.sh", { mode: "0640" })).mode, "0640");
    });

    it("are made, moved and removed, with the right refusals", async () => {
      const { files } = shared.sandbox;
      assert.equal((await files.mkdir("/workspace/made")).type, "directory");
      assert.equal((await fails(files.mkdir("/workspace/made"))).reason, "already_exists");
      await files.mkdir("/workspace/made/x/y", { parents: true });
      await files.write("/workspace/made/from", "1");
      assert.equal((await files.move("/workspace/made/from", "/workspace/made/to")).path, "/workspace/made/to");
      await files.write("/workspace/made/other", "2");
      assert.equal((await fails(files.move("/workspace/made/to", "/workspace/made/other"))).status, 409);
      await files.move("/workspace/made/to", "/workspace/made/other", { overwrite: true });
      assert.equal(await files.exists("/workspace/made/to"), false);
      assert.equal(await files.exists("/workspace/made/other"), true);
      await files.remove("/workspace/made", { recursive: true });
      assert.equal((await fails(files.stat("/workspace/made"))).reason, "not_found");
      assert.equal((await fails(files.read("/workspace"))).status, 422);
      assert.equal((await fails(files.head("/workspace/made"))).reason, "not_found");
    });

    it("are composed from parts", async (t) => {
      if (!needs(t, shared, "POST", `${route}/compose`)) return;
      const { files } = shared.sandbox;
      for (const part of ["1", "2", "3"]) await files.write(`/workspace/part${part}`, part);
      await files.compose(["/workspace/part1", "/workspace/part2", "/workspace/part3"], "/workspace/whole");
      assert.equal(await files.readText("/workspace/whole"), "123");
      assert.equal(await files.exists("/workspace/part1"), false);
    });

    it("are searched by name and content", async (t) => {
      if (!needs(t, shared, "GET", `${route}/search`)) return;
      const { files } = shared.sandbox;
      await files.write("/workspace/search/one.py", "import os\nneedle = 1\n");
      await files.write("/workspace/search/two.txt", "needle\n");
      const hits = await files.search({ path: "/workspace/search", pattern: "*.py", contains: "needle" });
      assert.deepEqual(hits.map((hit) => hit.path), ["/workspace/search/one.py"]);
      assert.deepEqual(hits[0]?.lines, [{ number: 2, text: "needle = 1" }]);
    });

    it("are watched", async (t) => {
      if (!needs(t, shared, "GET", `${route}/watch`)) return;
      const { files } = shared.sandbox;
      await files.mkdir("/workspace/watched", { parents: true });
      const watch = await files.watch("/workspace/watched", { recursive: true });
      await files.write("/workspace/watched/new", "x");
      for await (const event of watch) {
        if (event.type === "create" && event.path === "/workspace/watched/new") break;
      }
      await watch.close();
      assert.equal((await fails(files.watch("/workspace/missing"))).status, 404);
    });

    it("are signed for others, without a key", async (t) => {
      if (!needs(t, shared, "POST", `${route}/sign`) || "fake" in shared.target) return;
      const { files } = shared.sandbox;
      await files.write("/workspace/signed", "for you");
      const { url, expiresAt } = await files.sign("GET", "/workspace/signed", { ttlSeconds: 60 });
      assert.ok(Date.parse(expiresAt ?? "") > Date.now());
      assert.equal(await (await fetch(url)).text(), "for you");
    });
  });

  describe("archives", () => {
    it("carry a directory up and down with modes, times and links", async (t) => {
      if (!needs(t, shared, "PUT", "/v1/sandboxes/{id}/archive")) return;
      const { files } = shared.sandbox;
      const local = fs.mkdtempSync(join(tmpdir(), "cay-ts-up-"));
      const back = fs.mkdtempSync(join(tmpdir(), "cay-ts-down-"));
      try {
        fs.mkdirSync(join(local, "sub/empty"), { recursive: true });
        fs.writeFileSync(join(local, "sub/ü.txt"), "content");
        fs.writeFileSync(join(local, "run"), "#!/bin/sh\n", { mode: 0o755 });
        fs.chmodSync(join(local, "run"), 0o755);
        fs.utimesSync(join(local, "run"), 1e9, 1e9);
        fs.symlinkSync("sub/ü.txt", join(local, "link"));
        const up = await files.uploadDirectory(local, "/workspace/archive");
        assert.equal(await files.readText("/workspace/archive/sub/ü.txt"), "content");
        assert.equal((await files.stat("/workspace/archive/run")).mode, "0755");
        assert.equal((await files.stat("/workspace/archive/link")).target, "sub/ü.txt");
        assert.ok(up.files >= 2);
        const down = await files.downloadDirectory("/workspace/archive", back);
        assert.deepEqual(down.skipped, []);
        assert.equal(fs.readFileSync(join(back, "sub/ü.txt"), "utf8"), "content");
        assert.equal(fs.statSync(join(back, "run")).mode & 0o777, 0o755);
        assert.equal(Math.round(fs.statSync(join(back, "run")).mtimeMs), 1e12);
        assert.equal(fs.readlinkSync(join(back, "link")), "sub/ü.txt");
        assert.ok(fs.statSync(join(back, "sub/empty")).isDirectory());
      } finally {
        fs.rmSync(local, { recursive: true });
        fs.rmSync(back, { recursive: true });
      }
    });

    it("are made by hand, uploaded and read", async (t) => {
      if (!needs(t, shared, "PUT", "/v1/sandboxes/{id}/archive")) return;
      const { files } = shared.sandbox;
      const report = await files.uploadArchive("/workspace/byhand", createTar([{ path: "d", type: "directory" }, { path: "d/f", data: "hi" }]), { format: "tar" });
      assert.equal(report.files, 1);
      const seen: Record<string, string> = {};
      for await (const entry of readTar(await files.downloadArchive("/workspace/byhand", { format: "tar" }))) {
        if (entry.type === "file") seen[entry.path.replace(/^\.\//, "")] = await entry.text();
      }
      assert.deepEqual(seen, { "d/f": "hi" });
    });

    it("that lead out are refused by the server, and nothing is written", async (t) => {
      if (!needs(t, shared, "PUT", "/v1/sandboxes/{id}/archive")) return;
      const { files } = shared.sandbox;
      const archive = createTar([{ path: "fine", data: "x" }, { path: "../../escape", data: "x" }]);
      assert.equal((await fails(files.uploadArchive("/workspace/outside", archive, { format: "tar" }))).status, 422);
      await until(async () => !(await files.exists("/workspace/outside/fine")), "nothing was written");
    });
  });
}
