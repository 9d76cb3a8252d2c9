import assert from "node:assert/strict";
import { after, before, beforeEach, describe, it } from "node:test";
import { createServer, type AddressInfo } from "node:net";
import { randomBytes } from "node:crypto";
import { inspect } from "node:util";
import { CaySandboxError, Sandbox, Server } from "../src/index.js";
import { FakeServer } from "./fake/server.js";
import { fails, collect, until } from "./suite/expect.js";
import { textOf } from "./suite/exec.js";

describe("when the network or the server misbehaves", () => {
  let fake: FakeServer;
  let sandbox: Sandbox;
  before(async () => {
    fake = await FakeServer.start();
    sandbox = await Sandbox.create({ url: fake.url, apiKey: fake.key });
  });
  after(() => fake.stop());
  beforeEach(() => {
    fake.faults.length = 0;
    fake.requests.length = 0;
  });
  const unavailable = (retryAfter?: string, status = 503, reason = "unavailable") => (_: unknown, res: import("node:http").ServerResponse): void => {
    res.writeHead(status, { "content-type": "application/problem+json", ...(retryAfter === undefined ? {} : { "retry-after": retryAfter }) });
    res.end(JSON.stringify({ status, reason, detail: "not now", request_id: "req_1" }));
  };

  it("a 503 is tried again after Retry-After in seconds", async () => {
    fake.faults.push({ match: /^GET .*\/processes$/, answer: unavailable("1") });
    const began = Date.now();
    await sandbox.processes.list();
    assert.ok(Date.now() - began >= 990, `${Date.now() - began} ms`);
    assert.equal(fake.count(/processes$/), 2);
  });

  it("Retry-After may be a date", async () => {
    const at = new Date(Date.now() + 2000).toUTCString();
    fake.faults.push({ match: /^GET .*\/processes$/, answer: unavailable(at) });
    await sandbox.processes.list();
    assert.ok(Date.now() >= Date.parse(at));
  });

  it("a Retry-After of minutes is the caller's to honour", async () => {
    fake.faults.push({ match: /^GET .*\/processes$/, answer: unavailable("600") });
    const error = await fails(sandbox.processes.list());
    assert.equal(error.status, 503);
    assert.equal(error.retryAfter, 600);
    assert.equal(error.requestId, "req_1");
    assert.equal(fake.count(/processes$/), 1);
  });

  it("attempts are bounded", async () => {
    fake.faults.push({ match: /^GET .*\/processes$/, times: 100, answer: unavailable() });
    assert.equal((await fails(sandbox.processes.list())).status, 503);
    assert.equal(fake.count(/processes$/), 4);
  });

  it("a refusal is not tried again, nor is an exhausted quota", async () => {
    fake.faults.push({ match: /^GET .*\/processes$/, answer: unavailable(undefined, 409, "conflict") });
    assert.equal((await fails(sandbox.processes.list())).status, 409);
    fake.faults.push({ match: /^GET .*\/processes$/, answer: unavailable(undefined, 429, "quota_exceeded") });
    assert.equal((await fails(sandbox.processes.list())).reason, "quota_exceeded");
    assert.equal(fake.count(/processes$/), 2);
  });

  it("an exec whose connection breaks is sent again with its key, and runs once", async () => {
    fake.faults.push({ match: /^POST .*\/exec$/, cutAfter: 10 });
    const result = await sandbox.exec("echo x >> once; cat once");
    assert.equal(result.stdout, "x\n");
    const keys = fake.requests.filter((r) => /exec$/.test(r.url)).map((r) => r.headers["idempotency-key"]);
    assert.equal(keys.length, 2);
    assert.ok(keys[0] !== undefined && keys[0] === keys[1]);
  });

  it("a create whose answer is lost makes one sandbox", async () => {
    const count = fake.sandboxes.size;
    fake.faults.push({ match: /^POST \/v1\/sandboxes\?/, cutAfter: 20 });
    await Sandbox.create({ url: fake.url, apiKey: fake.key });
    assert.equal(fake.sandboxes.size, count + 1);
  });

  it("a create that is answered with 202 is waited for", async () => {
    fake.bootTime = 300;
    try {
      assert.equal((await Sandbox.create({ url: fake.url, apiKey: fake.key })).info.status, "READY");
      const late = await fails(Sandbox.create({ url: fake.url, apiKey: fake.key, readyTimeout: 0 }));
      assert.equal(late.reason, "timeout");
    } finally {
      fake.bootTime = 0;
    }
  });

  it("stdin without an offset is never sent twice", async () => {
    const cat = await sandbox.processes.start(["cat"], { stdinOpen: true });
    fake.faults.push({ match: /\/stdin/, answer: unavailable() });
    assert.equal((await fails(sandbox.processes.sendStdin(cat, "x"))).status, 503);
    fake.faults.push({ match: /\/stdin/, answer: unavailable() });
    assert.deepEqual(await sandbox.processes.sendStdin(cat, "x", { offset: 0 }), { stdinOffset: 1 });
    await sandbox.processes.kill(cat);
  });

  it("a streamed upload is not sent twice, one that can be repeated is", async () => {
    fake.faults.push({ match: /^PUT .*\/files/, answer: unavailable() });
    assert.equal((await fails(sandbox.files.write("/workspace/s", new Blob(["x"]).stream()))).status, 503);
    fake.faults.push({ match: /^PUT .*\/files/, answer: unavailable() });
    assert.equal((await sandbox.files.write("/workspace/s", "x")).size, 1);
  });

  for (const cutAfter of [0, 30, 150, 300, 5000]) {
    it(`a stream that is cut after ${cutAfter} bytes is attached again without loss or doubling`, async () => {
      fake.faults.push({ match: /^POST .*\/exec$/, cutAfter }, { match: /\/stream\?/, cutAfter: cutAfter + 200 }, { match: /\/stream\?/, cutAfter: cutAfter + 100 });
      const events = await collect(sandbox.execStream("for i in $(seq 1 200); do echo $i; done; echo é; exit 3"));
      const bytes = Buffer.concat(events.flatMap((e) => (e.type === "stdout" ? [e.bytes] : []))).toString();
      assert.equal(bytes, `${Array.from({ length: 200 }, (_, i) => `${i + 1}\n`).join("")}é\n`);
      assert.equal(textOf(events, "stdout"), bytes);
      assert.equal(events.filter((e) => e.type === "start").length, 1);
      const exits = events.filter((e) => e.type === "exit");
      assert.equal(exits.length, 1);
      assert.equal((exits[0] as { exitCode: number }).exitCode, 3);
    });
  }

  it("a code stream that is cut before its result gets it by attaching", async () => {
    fake.faults.push({ match: /^POST .*\/code$/, cutAfter: 100 });
    const events = await collect(sandbox.runCodeStream("print('x')"));
    assert.equal(events[events.length - 1]?.type, "result");
    assert.equal(events.filter((e) => e.type === "exit").length, 1);
  });

  it("a stream that always ends without an exit is an error, never a success", async () => {
    fake.faults.push({ match: /\/(exec|stream)/, times: 100, answer: (_, res) => {
      res.writeHead(200, { "content-type": "text/event-stream" });
      res.end('event: start\ndata: {"process_id":"prc_x","offset":0}\n\n');
    } });
    const error = await fails(collect(sandbox.processes.follow("prc_x")));
    assert.equal(error.reason, "stream_broken");
  });

  it("an error event ends a stream with its reason", async () => {
    fake.faults.push({ match: /^POST .*\/exec$/, answer: (_, res) => {
      res.writeHead(200, { "content-type": "text/event-stream" });
      res.end('event: start\ndata: {"process_id":"prc_x","offset":0}\n\nevent: error\ndata: {"reason":"worker_lost","detail":"the worker is gone"}\n\n');
    } });
    const error = await fails(collect(sandbox.execStream("true")));
    assert.equal(error.reason, "worker_lost");
    assert.match(error.message, /the worker is gone/);
  });

  it("garbage is an error and not an answer", async () => {
    const html = (_: unknown, res: import("node:http").ServerResponse): void => void res.writeHead(200, { "content-type": "text/html" }).end("<html>");
    fake.faults.push({ match: /\/exec$/, times: 2, answer: html });
    assert.equal((await fails(sandbox.exec("true"))).reason, "invalid_response");
    assert.equal((await fails(collect(sandbox.execStream("true")))).reason, "invalid_response");
    fake.faults.push({ match: /\/processes$/, answer: (_, res) => void res.writeHead(418, { "content-type": "text/html" }).end("<html>") });
    const error = await fails(sandbox.processes.list());
    assert.equal(error.status, 418);
    assert.equal(error.reason, "http_418");
    assert.equal(error.body, "<html>");
  });

  it("a redirect is refused, because it could carry the key away", async () => {
    fake.faults.push({ match: /\/processes$/, answer: (_, res) => void res.writeHead(302, { location: "http://127.0.0.1:1/" }).end() });
    assert.equal((await fails(sandbox.processes.list())).status, 302);
  });

  it("content that cannot be read is the caller's error, and is not sent again", async () => {
    const broken = (async function* () {
      yield "some";
      throw new Error("the disk is on fire");
    })();
    const error = await fails(sandbox.files.write("/workspace/broken", broken));
    assert.equal(error.reason, "invalid_argument");
    assert.match(error.message, /the disk is on fire/);
    assert.match((await fails(sandbox.files.uploadDirectory("/nowhere", "/workspace/broken"))).message, /ENOENT/);
    assert.ok(fake.count(/^PUT/) <= 2, "neither was sent twice");
  });

  it("a download that is cut short is an error", async () => {
    await sandbox.files.write("/workspace/long", "0123456789".repeat(1000));
    fake.faults.push({ match: /^GET .*\/files\?/, times: 100, cutAfter: 5000 });
    assert.ok(["stream_broken", "connection_failed"].includes((await fails(sandbox.files.read("/workspace/long"))).reason));
    const stream = await sandbox.files.readStream("/workspace/long");
    assert.equal((await fails(collect(stream))).reason, "stream_broken");
  });

  it("an archive that is cut short is an error", async () => {
    await sandbox.files.write("/workspace/dir/long", randomBytes(50_000));
    fake.faults.push({ match: /\/archive/, times: 100, cutAfter: 20_000 });
    const { mkdtempSync, rmSync } = await import("node:fs");
    const local = mkdtempSync("/tmp/cay-ts-cut-");
    try {
      const { reason } = await fails(sandbox.files.downloadDirectory("/workspace/dir", local));
      assert.ok(["stream_broken", "connection_failed"].includes(reason), reason);
    } finally {
      rmSync(local, { recursive: true });
    }
  });

  it("a watch that breaks is armed again and says that changes were missed", async () => {
    await sandbox.files.mkdir("/workspace/w", { parents: true });
    fake.faults.push({ match: /\/watch/, answer: (_, res) => {
      res.writeHead(200, { "content-type": "text/event-stream" });
      res.end('event: ready\ndata: {}\n\nevent: change\ndata: {"type":"create","path":"/workspace/w/x"}\n\n');
    } });
    const seen: unknown[] = [];
    for await (const event of sandbox.files.watch("/workspace/w")) {
      seen.push(event);
      if (seen.length === 2) break;
    }
    assert.deepEqual(seen, [{ type: "create", path: "/workspace/w/x" }, { type: "overflow" }]);
  });

  it("a request without an answer ends at its timeout", async () => {
    fake.faults.push({ match: /\/v1\/info$/, times: 100, answer: () => undefined });
    const server = new Server({ url: fake.url, apiKey: fake.key, requestTimeout: 1, maxRetries: 1 });
    assert.equal((await fails(server.info())).reason, "timeout");
    assert.equal(fake.count(/info$/), 2);
  });

  it("an abort ends the wait between attempts, and nothing is sent after it", async () => {
    fake.faults.push({ match: /\/processes$/, times: 100, answer: unavailable("5") });
    const controller = new AbortController();
    const listing = fails(sandbox.processes.list({ signal: controller.signal }));
    await until(async () => fake.count(/processes$/) === 1, "the first attempt was made");
    controller.abort();
    assert.equal((await listing).name, "AbortError");
    assert.equal(fake.count(/processes$/), 1);
    assert.equal((await fails(sandbox.exec("true", { signal: controller.signal }))).name, "AbortError");
    assert.equal(fake.count(/exec$/), 0);
    assert.equal((await fails(sandbox.exec("sleep 5", { signal: AbortSignal.timeout(100) }))).name, "TimeoutError");
  });

  it("a server that is not there is a typed error", async () => {
    const closed = createServer().listen(0, "127.0.0.1");
    await new Promise((resolve) => closed.once("listening", resolve));
    const { port } = closed.address() as AddressInfo;
    await new Promise((resolve) => closed.close(resolve));
    const error = await fails(Sandbox.create({ url: `http://127.0.0.1:${port}`, apiKey: "k", maxRetries: 0 }));
    assert.equal(error.status, 0);
    assert.equal(error.reason, "connection_failed");
    assert.match(error.message, /ECONNREFUSED/);
    assert.equal((await fails((async () => Sandbox.create({ url: "no url" }))())).reason, "invalid_argument");
  });

  it("the key is in no message and no inspection", async () => {
    fake.faults.push({ match: /\/exec$/, answer: unavailable("600") });
    const error = await fails(sandbox.exec("true"));
    for (const thing of [error, sandbox, sandbox.files, new Server({ url: fake.url, apiKey: fake.key })]) {
      const text = inspect(thing, { depth: 10, showHidden: true }) + JSON.stringify(thing) + String((error as Error).stack);
      assert.ok(!text.includes(fake.key));
    }
  });

  it("settings come from the environment where they are not given", async () => {
    const before = { ...process.env };
    process.env["CAY_URL"] = `${fake.url}/`;
    process.env["CAY_API_KEY"] = fake.key;
    try {
      assert.equal((await new Server().info()).version, "fake");
    } finally {
      for (const name of ["CAY_URL", "CAY_API_KEY"]) {
        if (before[name] === undefined) delete process.env[name];
        else process.env[name] = before[name];
      }
    }
  });

  it("closing tolerates a sandbox that is gone, and reports other failures", async () => {
    const other = await Sandbox.create({ url: fake.url, apiKey: fake.key });
    fake.faults.push({ match: /^DELETE/, answer: unavailable(undefined, 500, "internal") });
    assert.ok((await fails(other.close())) instanceof CaySandboxError);
    fake.faults.push({ match: /^DELETE/, answer: unavailable(undefined, 404, "not_found") });
    await other.close();
  });
});
