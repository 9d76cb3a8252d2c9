import assert from "node:assert/strict";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { Job, Sandbox, Session, createTar, readTar } from "../../src/index.js";
import type { Shared } from "../suite.js";
import { collect, fails, needs } from "./expect.js";

const path = "/v1/sessions";

export function sessionTests(shared: Shared): void {
  describe("sessions", () => {
    let session: Session;
    const there = (): boolean => shared.target.has("POST", path);
    before(async () => {
      if (there()) session = await Session.create({ ...shared.target, metadata: { my_key: "v_1" }, ttlSeconds: 3600, diskGb: 1 });
    });
    after(() => session?.delete({ force: true }));

    it("are created with what was asked, found and connected to", async (t) => {
      if (!needs(t, shared, "POST", path)) return;
      const name = `n.${Date.now()}`;
      const named = await Session.create({ ...shared.target, name });
      try {
        assert.match(session.id, /^ses_/);
        assert.equal(session.status, "active");
        assert.equal(session.info.name, null);
        assert.equal(session.info.ttlSeconds, 3600);
        assert.deepEqual(session.info.metadata, { my_key: "v_1" });
        assert.ok(Date.parse(session.info.expiresAt ?? "") > Date.now());
        assert.deepEqual((await Session.list({ ...shared.target, name })).map((info) => info.id), [named.id]);
        assert.ok((await Session.list({ ...shared.target, metadata: { my_key: "v_1" }, limit: 1 })).some((info) => info.id === session.id));
        assert.equal((await Session.connect(named.id, shared.target)).info.name, name);
        const taken = await fails(Session.create({ ...shared.target, name }));
        assert.deepEqual([taken.status, taken.reason, (taken.body as { session_id?: string }).session_id], [409, "already_exists", named.id]);
        assert.equal((await fails(Session.create({ ...shared.target, name: "no/slash" }))).status, 400);
        assert.equal((await fails(Session.connect("ses_00000000000000000000000000", shared.target))).status, 404);
      } finally {
        await named.delete();
      }
    });

    it("carry files from one language to the next", async (t) => {
      if (!needs(t, shared, "POST", path) || !needs(t, shared, "POST", "/v1/jobs")) return;
      const made = await session.run({ code: "open('made.txt', 'w').write('by python')" });
      assert.equal(made.status, "success", JSON.stringify(made));
      assert.equal(made.sessionId, session.id);
      const read = await session.run({ language: "bash", code: "cat made.txt; pwd >&2" });
      assert.equal(read.stdout, "by python");
      assert.deepEqual((await Job.list({ ...shared.target, sessionId: session.id })).length, 2);
    });

    it("have files that need no sandbox", async (t) => {
      if (!needs(t, shared, "PUT", `${path}/{id}/files/content`)) return;
      const { files } = session;
      const entry = await files.write("dir/ü.txt", "grüße\n");
      assert.equal(entry.path, "/session/dir/ü.txt");
      assert.equal(entry.size, 8);
      assert.equal(await files.readText("/session/dir/ü.txt"), "grüße\n");
      assert.equal(await files.readText("/dir/ü.txt", { offset: 6, length: 2 }), "e\n");
      assert.deepEqual(await files.read("dir/ü.txt"), new TextEncoder().encode("grüße\n"));
      const { size, etag } = await files.head("dir/ü.txt");
      assert.equal(size, 8);
      await files.write("dir/ü.txt", new Uint8Array(70_000), { ifMatch: etag ?? "", mode: 0o600 });
      assert.equal((await fails(files.write("dir/ü.txt", "x", { ifMatch: etag ?? "" }))).status, 412);
      assert.equal((await fails(files.write("dir/ü.txt", "x", { createOnly: true }))).status, 412);
      assert.ok((await files.list()).some((e) => e.path === "/session/dir" && e.type === "directory"));
      assert.deepEqual((await files.list("dir")).map((e) => [e.path, e.mode]), [["/session/dir/ü.txt", "0600"]]);
      assert.ok((await collect(files.list("/", { depth: 2, limit: 1 }))).some((e) => e.path === "/session/dir/ü.txt"));
      assert.equal(Buffer.concat(await collect(await files.readStream("dir/ü.txt"))).length, 70_000);
      await files.remove("dir", { recursive: true });
      assert.equal((await fails(files.read("dir/ü.txt"))).status, 404);
      assert.equal((await fails(files.head("dir"))).reason, "not_found");
    });

    it("are exported and imported, whole and in part", async (t) => {
      if (!needs(t, shared, "PUT", `${path}/{id}/archive`)) return;
      const { files } = session;
      const report = await files.uploadArchive("/", createTar([{ path: "tree", type: "directory" }, { path: "tree/f", data: "hi" }]), { format: "tar" });
      assert.equal(report.files, 1);
      const seen: Record<string, string> = {};
      for await (const entry of readTar(await files.downloadArchive("/", { format: "tar" }))) {
        if (entry.type === "file") seen[entry.path.replace(/^\.\//, "")] = await entry.text();
      }
      assert.equal(seen["tree/f"], "hi");
      const local = fs.mkdtempSync(join(tmpdir(), "cay-ts-session-"));
      try {
        await files.downloadDirectory("tree", local);
        assert.deepEqual(fs.readdirSync(local), ["f"]);
        fs.writeFileSync(join(local, "g"), "more");
        await files.uploadDirectory(local, "copy/of");
        assert.equal(await files.readText("copy/of/f"), "hi");
        assert.equal(await files.readText("copy/of/g"), "more");
      } finally {
        fs.rmSync(local, { recursive: true });
      }
    });

    it("are of one sandbox at a time, unless all of them share", async (t) => {
      if (!needs(t, shared, "POST", path)) return;
      const { target } = shared;
      await session.files.write("for-sandboxes.txt", "seen");
      const sandbox = await Sandbox.create({ ...target.create, sessionId: session.id });
      try {
        assert.equal(sandbox.info.sessionId, session.id);
        assert.equal(await sandbox.files.readText("/session/for-sandboxes.txt"), "seen");
        assert.deepEqual((await Sandbox.list({ ...target, sessionId: session.id, status: "active" })).map((info) => info.id), [sandbox.id]);
        const refused = await fails(Sandbox.create({ ...target.create, sessionId: session.id, sessionShared: true }));
        assert.deepEqual([refused.status, refused.reason, (refused.body as { sandbox_id?: string }).sandbox_id], [409, "conflict", sandbox.id]);
        assert.deepEqual((await session.refresh()).usedBy, [sandbox.id]);
        assert.equal((await fails(session.delete())).status, 409);
      } finally {
        await sandbox.close();
      }
      const both = await Promise.all([1, 2].map(() => Sandbox.create({ ...target.create, sessionId: session.id, sessionShared: true })));
      await both[0]?.files.write("/session/shared.txt", "both");
      assert.equal(await both[1]?.files.readText("/session/shared.txt"), "both");
      await Promise.all(both.map((one) => one.close()));
    });

    it("end with their files, once or twice", async (t) => {
      if (!needs(t, shared, "POST", path)) return;
      const ended = await Session.create(shared.target);
      await ended.files.write("f", "x");
      await ended.delete();
      await ended.delete();
      assert.equal((await ended.refresh()).status, "deleted");
      assert.equal(ended.info.statusReason, "deleted");
      assert.equal((await fails(ended.files.read("f"))).status, 410);
      if (shared.target.has("POST", "/v1/jobs")) assert.equal((await fails(ended.run({ code: "print(1)" }))).status, 410);
      assert.ok(!(await Session.list(shared.target)).some((info) => info.id === ended.id));
    });
  });
}
