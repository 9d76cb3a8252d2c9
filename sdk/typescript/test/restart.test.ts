// What must survive a restart of the server, against a real one of this test's own.
import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { Events, History, Job, type JobFrame } from "../src/index.js";
import { writtenIn } from "./suite/jobs.js";
import { type OwnServer, startServer } from "./target.js";

const bin = process.env["CAY_TEST_BIN"];

describe("over a restart of a real server", { skip: bin ? false : "set CAY_TEST_BIN" }, () => {
  let server: OwnServer;
  before(async () => void (server = await startServer(bin ?? "")));
  after(() => server?.stop());

  /** What becomes of a job, as the events of the project say. */
  async function changesOf(job: string): Promise<unknown[]> {
    const changes: unknown[] = [];
    for await (const event of Events.follow({ ...server, types: "job_status", signal: AbortSignal.timeout(300_000) })) {
      if (!("data" in event) || event.jobId !== job) continue;
      changes.push(event.data["to"]);
      if (event.data["to"] === "failed") break;
    }
    return changes;
  }

  it("a job runs on, its stream has every byte once, its changes are followed, and a wait gets its end", async () => {
    const lines = 60;
    const job = await Job.submit({ ...server, language: "bash", code: `for i in $(seq ${lines}); do echo "ü $i"; sleep .25; done; exit 3` });
    const waiting = job.wait();
    const following = changesOf(job.id);
    const frames: JobFrame[] = [];
    let restarting: Promise<void> | undefined;
    for await (const frame of (await Job.connect(job.id, server)).stream()) {
      frames.push(frame);
      if (frame.type === "stdout") restarting ??= server.restart();
    }
    await restarting;
    const expected = Array.from({ length: lines }, (_, i) => `ü ${i + 1}\n`).join("");
    assert.equal(writtenIn(frames, "stdout").text, expected);
    assert.equal(Buffer.from(writtenIn(frames, "stdout").bytes, "base64").toString(), expected);
    assert.deepEqual(frames.flatMap((frame) => (frame.type === "status" ? [`${frame.data} ${frame.attempt}`] : [])), ["queued 1", "running 1"]);
    const done = await waiting;
    assert.deepEqual([done.status, done.exitCode, done.attempt, done.stdout], ["failed", 3, 1, expected]);
    assert.deepEqual(await following, ["queued", "running", "failed"]);
    assert.equal((await History.get(job.id, server)).exitCode, 3);
    const late: JobFrame[] = [];
    for await (const frame of job.stream()) late.push(frame);
    assert.equal(writtenIn(late, "stdout").text, expected);
  });
});
