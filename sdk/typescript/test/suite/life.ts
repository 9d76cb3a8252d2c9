import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { Sandbox, Server } from "../../src/index.js";
import type { Shared } from "../suite.js";
import { collect, fails, needs } from "./expect.js";

export function lifeTests(shared: Shared): void {
  describe("sandboxes", () => {
    it("are created with what was asked, found, connected to and closed twice", async () => {
      const { target } = shared;
      const sandbox = await Sandbox.create({ ...target.create, metadata: { my_key: "v_1", Other: "x" }, env: { MY_VAR: "1" } });
      assert.match(sandbox.id, /^sbx_/);
      assert.equal(sandbox.info.status, "READY");
      assert.deepEqual(sandbox.info.metadata, { my_key: "v_1", Other: "x" });
      assert.equal((await sandbox.exec("echo $MY_VAR")).stdout, "1\n");
      const found = await Sandbox.list({ ...target, status: "active", metadata: { my_key: "v_1" } });
      assert.ok(found.some((info) => info.id === sandbox.id));
      const same = await Sandbox.connect(sandbox.id, target);
      assert.equal(same.id, sandbox.id);
      await Promise.all([sandbox.close(), sandbox.close()]);
      await sandbox.close();
      await same.close();
      const error = await fails(same.exec("true"));
      assert.equal(error.status, 410);
      assert.equal(error.reason, "gone");
      assert.match((await same.refresh()).status, /^TERMINAT/);
    });

    it("are closed by `await using`", async () => {
      const { target } = shared;
      let id: string;
      {
        await using sandbox = await Sandbox.create(target.create);
        id = sandbox.id;
      }
      assert.match((await Sandbox.connect(id, target)).info.status, /^TERMINAT/);
    });

    it("are refused with the field at fault", async () => {
      const error = await fails(Sandbox.create({ ...shared.target.create, image: "host", runtime: "python" }));
      assert.equal(error.status, 400);
      assert.equal(error.reason, "invalid_request");
      assert.equal((await fails(Sandbox.connect("sbx_00000000000000000000000000", shared.target))).reason, "not_found");
      assert.equal((await fails(Sandbox.connect(shared.sandbox.id, { ...shared.target, apiKey: "cay_wrong" }))).status, 401);
    });

    it("pause, resume, and keep their processes", async () => {
      const { sandbox } = shared;
      assert.equal((await sandbox.pause()).status, "PAUSED");
      assert.equal((await sandbox.pause()).status, "PAUSED");
      assert.equal((await sandbox.resume()).status, "READY");
      assert.equal((await sandbox.exec("echo back")).stdout, "back\n");
    });

    it("live as long as they are told", async () => {
      const { sandbox } = shared;
      const info = await sandbox.setTimeout(1200);
      assert.ok(Math.abs(Date.parse(info.expiresAt ?? "") - Date.now() - 1_200_000) < 30_000, String(info.expiresAt));
      assert.equal((await fails(sandbox.setTimeout(-1))).status, 400);
      assert.equal((await sandbox.keepalive()).id, sandbox.id);
      const updated = await sandbox.update({ metadata: { a_b: "c" }, onTimeout: "pause" });
      assert.deepEqual(updated.metadata, { a_b: "c" });
      assert.equal(sandbox.info.onTimeout, "pause");
    });

    it("have network rules", async () => {
      assert.deepEqual(await shared.sandbox.setNetwork([]), { allow: [], deny: [] });
      assert.deepEqual(await shared.sandbox.getNetwork(), { allow: [], deny: [] });
    });

    it("answer requests that the server does not have yet with a typed error", async () => {
      const { sandbox } = shared;
      for (const attempt of [() => sandbox.snapshot({ name: "s" }), () => sandbox.fork({ count: 2 }), () => sandbox.rollback("snp_x")]) {
        const error = await fails(attempt());
        assert.ok(error.status >= 400 && error.status < 600);
      }
    });
  });

  describe("ports", () => {
    it("are exposed, listed and closed", async (t) => {
      if (!needs(t, shared, "POST", "/v1/sandboxes/{id}/ports")) return;
      const { ports } = shared.sandbox;
      const exposed = await ports.expose(8123);
      assert.equal(exposed.port, 8123);
      assert.notEqual(exposed.token, null);
      const url = new URL(await shared.sandbox.getPortUrl(8123));
      assert.ok(url.hostname.startsWith(`8123-${shared.sandbox.id.slice(4)}.`));
      assert.equal(url.searchParams.get("cay_port_token"), exposed.token);
      assert.equal((await ports.expose(8123, { public: true })).token, null);
      assert.equal(new URL(await shared.sandbox.getPortUrl(8123)).search, "");
      assert.deepEqual((await ports.list()).map((p) => p.port), [8123]);
      await ports.close(8123);
      assert.deepEqual(await ports.list(), []);
    });

    it("answer requests by the key", async (t) => {
      if (!needs(t, shared, "POST", "/v1/sandboxes/{id}/ports") || !needs(t, shared, "POST", "/v1/sandboxes/{id}/processes")) return;
      const { sandbox } = shared;
      const port = 20_000 + Math.floor(Math.random() * 10_000);
      await sandbox.files.write("/workspace/web/page.txt", "served");
      const web = await sandbox.processes.start(["python3", "-u", "-m", "http.server", String(port), "--bind", "127.0.0.1"], { cwd: "/workspace/web" });
      for await (const event of sandbox.processes.follow(web)) {
        if (event.type === "stdout" && event.data.includes("Serving")) break;
      }
      const answer = await sandbox.ports.fetch(port, "/page.txt");
      assert.equal(await answer.text(), "served");
      assert.equal((await sandbox.ports.fetch(port, "/missing")).status, 404);
      await sandbox.processes.kill(web);
      const error = await fails(sandbox.ports.fetch(port + 1, "/"));
      assert.equal(error.status, 503);
    });
  });

  describe("observation", () => {
    it("has metrics", async (t) => {
      if (!needs(t, shared, "GET", "/v1/sandboxes/{id}/metrics")) return;
      const metrics = await shared.sandbox.metrics({ from: new Date(Date.now() - 60_000) });
      assert.ok(metrics.intervalSeconds > 0);
      assert.ok(Array.isArray(metrics.items));
    });

    it("has events, listed and followed to the end of a sandbox", async (t) => {
      if (!needs(t, shared, "GET", "/v1/sandboxes/{id}/events")) return;
      const sandbox = await Sandbox.create(shared.target.create);
      const following = collect(sandbox.followEvents());
      assert.ok((await sandbox.events()).length > 0);
      await sandbox.close();
      const followed = await following;
      const last = followed[followed.length - 1];
      assert.ok(last !== undefined && "data" in last, JSON.stringify(last));
      const listed: string[] = [];
      for await (const event of sandbox.events({ limit: 1 })) listed.push(event.id);
      assert.equal(new Set(listed).size, listed.length);
      assert.ok(listed.length >= 2);
    });

    it("has logs", async (t) => {
      if (!needs(t, shared, "GET", "/v1/sandboxes/{id}/logs")) return;
      for (const entry of await shared.sandbox.logs({ limit: 10 })) assert.equal(typeof entry.message, "string");
    });
  });

  describe("the server", () => {
    it("says what it is and how it is", async () => {
      const server = new Server(shared.target);
      assert.equal(typeof (await server.info()).version, "string");
      assert.ok(Array.isArray(await server.runtimes()));
      await server.health();
      await server.ready();
      assert.notEqual(await server.metrics(), "");
      assert.notEqual(await server.docs(), "");
      assert.equal(typeof (await server.openapi())["openapi"], "string");
      assert.equal(typeof (await server.createTicket(`/v1/sandboxes/${shared.sandbox.id}/terminal`)).ticket, "string");
    });
  });
}
