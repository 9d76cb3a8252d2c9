import assert from "node:assert/strict";
import type { IncomingMessage, ServerResponse } from "node:http";
import { after, before, beforeEach, describe, it } from "node:test";
import { Job, type JobFrame, Session } from "../src/index.js";
import { Client } from "../src/client.js";
import { followJob } from "../src/jobstream.js";
import { type Fault, FakeServer } from "./fake/server.js";
import { collect, fails, until } from "./suite/expect.js";
import { writtenIn } from "./suite/jobs.js";

describe("jobs when the network or the server misbehaves", () => {
  let fake: FakeServer;
  before(async () => void (fake = await FakeServer.start()));
  after(() => fake.stop());
  beforeEach(() => {
    fake.faults.length = 0;
    fake.requests.length = 0;
  });
  const submit = (code: string, language = "bash"): Promise<Job> => Job.submit({ url: fake.url, apiKey: fake.key, language, code });
  const unavailable = (_: IncomingMessage, res: ServerResponse): void => {
    res.writeHead(503, { "content-type": "application/problem+json" });
    res.end(JSON.stringify({ status: 503, reason: "unavailable", detail: "not now" }));
  };
  /** A stream with these frames, which then ends. */
  const stream = (...frames: (Record<string, unknown> & { type: string; seq?: number })[]): Fault["answer"] => (_, res) => {
    res.writeHead(200, { "content-type": "text/event-stream" });
    res.end(frames.map((frame) => `event: ${frame.type}\n${frame.seq === undefined ? "" : `id: ${frame.seq}\n`}data: ${JSON.stringify({ ts: "2026-01-01T00:00:00.000Z", ...frame })}\n\n`).join(""));
  };
  const exit = (seq: number) => ({ type: "exit", seq, data: "success", exit_code: 0, signal: null, timed_out: false, duration_ms: 1 });
  const opened = (): (string | null)[] => fake.requests.filter((r) => r.url.includes("/stream")).map((r) => new URL(r.url, fake.url).searchParams.get("seq"));

  it("a submit whose answer is lost makes one job", async () => {
    fake.faults.push({ match: /^POST \/v1\/jobs$/, cutAfter: 20 });
    const job = await submit("echo once");
    assert.equal((await job.wait()).stdout, "once\n");
    const keys = fake.requests.filter((r) => r.method === "POST").map((r) => r.headers["idempotency-key"]);
    assert.equal(keys.length, 2);
    assert.ok(keys[0] !== undefined && keys[0] === keys[1]);
    assert.equal((await Job.list({ url: fake.url, apiKey: fake.key })).length, 1);
  });

  for (const cutAfter of [0, 150, 400, 401, 402, 403, 404, 5000]) {
    it(`a stream that is cut after ${cutAfter} bytes goes on where it was`, async () => {
      const job = await submit("for i in $(seq 1 200); do echo üüü$i; done; exit 3");
      fake.faults.push({ match: /\/stream/, cutAfter }, { match: /\/stream/, cutAfter: cutAfter + 100 }, { match: /\/stream/, cutAfter });
      const frames = await collect(job.stream());
      const { text, bytes } = writtenIn(frames, "stdout");
      assert.equal(text, Array.from({ length: 200 }, (_, i) => `üüü${i + 1}\n`).join(""));
      assert.equal(Buffer.from(bytes, "base64").toString(), text);
      assert.deepEqual(frames.filter((frame) => frame.type === "status").length, 2);
      assert.deepEqual(frames.filter((frame) => frame.type === "exit").length, 1);
      assert.ok(frames.every((frame, i) => frame.seq > (frames[i - 1]?.seq ?? 0)));
    });
  }

  it("a character whose bytes come over two connections is whole", async () => {
    const job = await submit("true");
    fake.faults.push(
      { match: /\/stream/, answer: stream({ type: "status", seq: 1, data: "queued", attempt: 1 }, { type: "stdout", seq: 4, data_base64: Buffer.from([0x61, 0xc3]).toString("base64") }) },
      { match: /\/stream\?seq=4$/, answer: stream({ type: "stdout", seq: 4, data: "again" }, { type: "stdout", seq: 6, data_base64: Buffer.from([0xa9, 0x62]).toString("base64") }, exit(7)) },
    );
    const frames = await collect(job.stream());
    assert.deepEqual(writtenIn(frames, "stdout"), { text: "aéb", bytes: Buffer.from("aéb").toString("base64") });
    assert.deepEqual(opened(), [null, "4"]);
  });

  it("a stream goes on over a restart of the server, and so does a wait", async () => {
    const job = await submit("echo one; while [ ! -e go ]; do sleep .02; done; echo two");
    const waiting = job.wait();
    const other = await Job.connect(job.id, { url: fake.url, apiKey: fake.key });
    let text = "";
    let last: JobFrame | undefined;
    for await (const frame of other.stream()) {
      last = frame;
      if (frame.type !== "stdout") continue;
      text += frame.data;
      if (text === "one\n") {
        fake.cutAll();
        fake.faults.push({ match: /^GET/, times: 12, answer: unavailable });
        await until(() => fake.faults.length === 0, "both came back");
        fake.release(job.id, "go");
      }
    }
    assert.equal(text, "one\ntwo\n");
    assert.equal(last?.type, "exit");
    assert.equal((await waiting).stdout, "one\ntwo\n");
  });

  it("an attempt of its own begins anew, and what was left of the last one's output is void", async () => {
    const job = await submit("true");
    const second = 2 ** 40;
    fake.faults.push({ match: /\/stream/, answer: stream(
      { type: "status", seq: 1, data: "queued", attempt: 1 }, { type: "status", seq: 2, data: "running", attempt: 1 },
      { type: "stdout", seq: 3, data_base64: Buffer.from([0xc3]).toString("base64") },
      { type: "status", seq: second + 1, data: "queued", attempt: 2 }, { type: "status", seq: second + 2, data: "running", attempt: 2 },
    ) }, { match: new RegExp(`/stream\\?seq=${second + 2}$`), answer: stream({ type: "stdout", seq: second + 3, data: "x" }, exit(second + 4)) });
    const frames = await collect(job.stream());
    const told = frames.flatMap((frame) => (frame.type === "status" ? [`${frame.data} ${frame.attempt}`] : frame.type === "stdout" ? [frame.data] : []));
    assert.deepEqual(told, ["queued 1", "running 1", "", "queued 2", "running 2", "x"]);
  });

  it("gaps, installs and frames of a newer server are told or skipped", async () => {
    const job = await submit("true");
    fake.faults.push({ match: /\/stream/, answer: stream(
      { type: "install", seq: 1, data: "fetching" }, { type: "stdout", seq: 3, data_base64: Buffer.from([0x61, 0xc3]).toString("base64") },
      { type: "gap", seq: 103, stream: "stdout", bytes: 100 }, { type: "news", seq: 104, data: {} }, { type: "stderr", seq: 105, data: "e" }, exit(106),
    ) });
    const frames = await collect(job.stream());
    assert.deepEqual(frames.map(({ type, seq }) => [type, seq]), [["install", 1], ["stdout", 3], ["stdout", 103], ["gap", 103], ["stderr", 105], ["exit", 106]]);
    assert.equal(writtenIn(frames, "stdout").text, "a\ufffd");
    assert.equal((frames[3] as { bytes: number }).bytes, 100);
  });

  it("a job that ends without its program's end says why in its last frame", async () => {
    const job = await submit("true");
    fake.faults.push({ match: /\/stream/, answer: stream({ type: "status", seq: 1, data: "queued", attempt: 1 }, { type: "error", seq: 2, data: "error", reason: "no_capacity", detail: "nothing is free" }) });
    const frames = await collect(job.stream());
    assert.deepEqual(frames[1], { type: "error", seq: 2, ts: "2026-01-01T00:00:00.000Z", data: "error", reason: "no_capacity", detail: "nothing is free" });
    assert.equal(opened().length, 1);
  });

  it("a stream that never says more is an error after a bounded number of attempts", async () => {
    fake.faults.push({ match: /\/stream/, times: 1000, answer: stream({ type: "status", seq: 1, data: "queued", attempt: 1 }) });
    const source = { client: new Client({ url: fake.url, apiKey: fake.key }), path: "/v1/jobs/job_x/stream", seq: 0, maxReconnects: 3 };
    const frames: JobFrame[] = [];
    const error = await fails((async () => {
      for await (const frame of followJob(source)) frames.push(frame);
    })());
    assert.equal(error.reason, "stream_broken");
    assert.equal(frames.length, 1);
    assert.deepEqual(opened(), [null, "1", "1", "1"]);
  });

  it("a stream from the last frame on is empty, and one from within a frame has the rest of it", async () => {
    const job = await submit("printf abc");
    const frames = await collect(job.stream());
    const last = frames[frames.length - 1] as JobFrame;
    assert.deepEqual([last.type, last.seq], ["exit", 6]);
    assert.deepEqual(await collect(job.stream({ seq: last.seq })), []);
    assert.deepEqual(opened(), [null, "6", "5"]);
    const whole = stream({ type: "stdout", seq: 5, data: "abc" }, exit(6));
    fake.faults.push({ match: /\/stream/, answer: whole });
    assert.equal(writtenIn(await collect(job.stream({ seq: 3 })), "stdout").text, "bc");
  });

  it("refusals and garbage are errors at once", async () => {
    const job = await submit("true");
    fake.faults.push({ match: /\/stream/, answer: (_, res) => void res.writeHead(404, { "content-type": "application/problem+json" }).end('{"reason":"not_found"}') });
    assert.equal((await fails(collect(job.stream()))).reason, "not_found");
    fake.faults.push({ match: /\/stream/, answer: stream({ type: "stdout", data: "x" }) });
    assert.equal((await fails(collect(job.stream()))).reason, "invalid_response");
    fake.faults.push({ match: /\/stream/, answer: (_, res) => void res.writeHead(200, { "content-type": "text/html" }).end("<html>") });
    assert.equal((await fails(collect(job.stream()))).reason, "invalid_response");
    assert.equal(opened().length, 3);
  });

  it("leaving the loop closes the connection, and an abort ends the wait for another", async () => {
    const job = await submit("echo one; sleep 60");
    let closed = false;
    fake.watch = (req, res) => {
      if (req.url?.includes("/stream")) res.on("close", () => (closed = true));
    };
    for await (const frame of job.stream()) {
      if (frame.type === "stdout") break;
    }
    await until(() => closed, "the connection is closed");
    fake.watch = undefined;
    const controller = new AbortController();
    fake.faults.push({ match: /\/stream/, times: 1000, answer: unavailable });
    const streaming = fails(collect(job.stream({ signal: controller.signal })));
    await until(() => opened().length > 1, "it has tried");
    controller.abort();
    assert.equal((await streaming).name, "AbortError");
    fake.faults.length = 0;
    await job.cancel();
  });

  it("a cancel that the server has not finished is waited for", async () => {
    const job = await submit("sleep 60");
    const info = JSON.stringify({ id: job.id, status: "running", finished_at: null, outputs: [] });
    fake.faults.push({ match: /^DELETE/, answer: (_, res) => void res.writeHead(202, { "content-type": "application/json" }).end(info) });
    const canceling = job.cancel();
    await until(() => fake.count(/^GET .*wait_seconds/) > 0, "it waits");
    await (await Job.connect(job.id, { url: fake.url, apiKey: fake.key })).cancel();
    assert.equal((await canceling).status, "canceled");
  });

  it("a session whose files are still being deleted is asked again", async () => {
    const session = await Session.create({ url: fake.url, apiKey: fake.key });
    fake.faults.push({ match: /^DELETE/, times: 2, answer: (_, res) => void res.writeHead(202, { "content-type": "application/json" }).end("{}") });
    await session.delete();
    assert.equal(fake.count(/^DELETE/), 3);
    fake.faults.push({ match: /^DELETE/, times: 100, answer: (_, res) => void res.writeHead(202, { "content-type": "application/json" }).end("{}") });
    assert.equal((await fails(session.delete())).reason, "timeout");
  });
});
