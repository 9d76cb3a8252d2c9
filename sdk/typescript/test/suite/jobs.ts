import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { Job, type JobFrame } from "../../src/index.js";
import type { Shared } from "../suite.js";
import { collect, fails, needs, until } from "./expect.js";

const path = "/v1/jobs";

/** What frames of a stream hold, as text and byte for byte. */
export function writtenIn(frames: JobFrame[], stream: "stdout" | "stderr"): { text: string; bytes: string } {
  const output = frames.flatMap((frame) => (frame.type === stream ? [frame] : []));
  return { text: output.map((frame) => frame.data).join(""), bytes: Buffer.concat(output.map((frame) => frame.bytes)).toString("base64") };
}

export function jobTests(shared: Shared): void {
  describe("jobs", () => {
    it("are submitted, waited for and found again", async (t) => {
      if (!needs(t, shared, "POST", path)) return;
      const job = await Job.submit({
        ...shared.target, code: "import os\nprint('hello ' + input() + os.environ['MY_VAR'])", stdin: new TextEncoder().encode("you\n"), env: { MY_VAR: "!" }, metadata: { my_key: "v_1" }, priority: 7,
      });
      assert.match(job.id, /^job_/);
      const done = await job.wait();
      assert.equal(done.status, "success", JSON.stringify(done));
      assert.equal(job.status, "success");
      assert.equal(done.stdout, "hello you!\n");
      assert.equal(done.stdoutSize, 11);
      assert.equal(done.exitCode, 0);
      assert.equal(done.language, "python");
      assert.equal(done.priority, 7);
      assert.deepEqual(done.metadata, { my_key: "v_1" });
      assert.equal(done.error, null);
      assert.ok(Date.parse(done.finishedAt ?? "") >= Date.parse(done.queuedAt ?? ""));
      const again = await Job.connect(job.id, shared.target);
      assert.equal(again.info.stdout, "hello you!\n");
      assert.deepEqual(await again.wait(), again.info);
    });

    it("of a program that fails, is killed or takes too long are results", async (t) => {
      if (!needs(t, shared, "POST", path)) return;
      const [failed, killed, late] = await Promise.all([
        "echo no >&2; exit 3", "kill -9 $$", "echo begun; sleep 60",
      ].map(async (code, i) => (await Job.submit({ ...shared.target, language: "bash", code, timeout: i === 2 ? 1 : 30 })).wait()));
      assert.deepEqual([failed?.status, failed?.exitCode, failed?.stderr], ["failed", 3, "no\n"]);
      assert.deepEqual([killed?.status, killed?.signal], ["failed", "KILL"]);
      assert.deepEqual([late?.status, late?.timedOut, late?.stdout], ["timeout", true, "begun\n"]);
    });

    it("keep the files that they leave in /output", async (t) => {
      if (!needs(t, shared, "GET", `${path}/{id}/outputs`)) return;
      const job = await Job.submit({ ...shared.target, code: "open('/output/made.txt', 'w').write('grüße')" });
      const done = await job.wait();
      const [file] = done.outputs;
      assert.equal(file?.path, "/output/made.txt", JSON.stringify(done));
      assert.equal(new TextDecoder().decode(file?.data), "grüße");
      assert.equal(new TextDecoder().decode(await job.readOutput("/output/made.txt")), "grüße");
      assert.equal(Buffer.concat(await collect(await job.readOutputStream(file as { path: string }))).toString(), "grüße");
      assert.ok(done.filesChanged.some((change) => change.path === "/output/made.txt" && change.op === "create"));
      assert.equal((await fails(job.readOutput("/output/missing"))).status, 404);
    });

    it("are streamed from the first byte, live, late, twice and from any frame", async (t) => {
      if (!needs(t, shared, "GET", `${path}/{id}/stream`)) return;
      const code = "import time\nfor i in range(5):\n  print('grüße', i)\n  time.sleep(.1)\nimport sys\nprint('err', file=sys.stderr)\nsys.exit(4)";
      const job = await Job.submit({ ...shared.target, code });
      const [first, second] = await Promise.all([collect(job.stream()), collect((await Job.connect(job.id, shared.target)).stream())]);
      const late = await collect(job.stream());
      for (const frames of [first, second, late]) {
        assert.equal(writtenIn(frames, "stdout").text, [0, 1, 2, 3, 4].map((i) => `grüße ${i}\n`).join(""));
        assert.equal(writtenIn(frames, "stderr").text, "err\n");
        assert.deepEqual(frames.flatMap((frame) => (frame.type === "status" ? [frame.data] : [])), ["queued", "running"]);
        const last = frames[frames.length - 1];
        assert.ok(last?.type === "exit", JSON.stringify(last));
        assert.deepEqual([last.data, last.exitCode, last.signal, last.timedOut], ["failed", 4, null, false]);
        assert.ok(frames.every((frame, i) => frame.seq > (frames[i - 1]?.seq ?? 0) && !Number.isNaN(Date.parse(frame.ts))));
      }
      assert.equal(first[first.length - 1]?.seq, late[late.length - 1]?.seq);
      const from = first[Math.floor(first.length / 2)] as JobFrame;
      const rest = await collect(job.stream({ seq: from.seq }));
      const whole = Buffer.from(writtenIn(late, "stdout").bytes, "base64");
      const left = Buffer.from(writtenIn(rest, "stdout").bytes, "base64");
      assert.deepEqual(left, whole.subarray(whole.length - left.length));
      assert.equal(left.length, whole.length - Buffer.from(writtenIn(first.filter((frame) => frame.seq <= from.seq), "stdout").bytes, "base64").length);
      assert.equal((await job.refresh()).status, "failed");
    });

    it("have output that is no text, byte for byte", async (t) => {
      if (!needs(t, shared, "GET", `${path}/{id}/stream`)) return;
      const job = await Job.submit({ ...shared.target, language: "bash", code: "printf '\\377\\000a'; printf '\\303'; sleep .2; printf '\\251'" });
      const { text, bytes } = writtenIn(await collect(job.stream()), "stdout");
      assert.equal(bytes, Buffer.from([0xff, 0, 0x61, 0xc3, 0xa9]).toString("base64"));
      assert.equal(text, "\ufffd\0aé");
    });

    it("run on when the loop over their stream is left", async (t) => {
      if (!needs(t, shared, "GET", `${path}/{id}/stream`)) return;
      const job = await Job.submit({ ...shared.target, language: "bash", code: "echo one; sleep .5; echo two" });
      for await (const frame of job.stream()) {
        if (frame.type === "stdout") break;
      }
      assert.equal((await job.wait()).stdout, "one\ntwo\n");
    });

    it("are canceled while they run, with the output so far, and once", async (t) => {
      if (!needs(t, shared, "DELETE", `${path}/{id}`)) return;
      const job = await Job.submit({ ...shared.target, language: "bash", code: "echo begun; sleep 60" });
      const frames: JobFrame[] = [];
      for await (const frame of job.stream()) {
        frames.push(frame);
        if (frame.type === "stdout") {
          assert.equal((await fails(job.wait({ timeout: 0.1 }))).reason, "timeout");
          assert.equal((await job.cancel()).status, "canceled");
        }
      }
      assert.equal(frames[frames.length - 1]?.type, "exit");
      assert.equal((frames[frames.length - 1] as { data: string }).data, "canceled");
      const info = await job.cancel();
      assert.deepEqual([info.status, info.stdout], ["canceled", "begun\n"]);
    });

    it("are listed by state and metadata, without their output", async (t) => {
      if (!needs(t, shared, "GET", path)) return;
      const metadata = { batch: `b${Date.now()}` };
      const jobs = [];
      for (const code of ["print(1)", "print(2)", "import time\ntime.sleep(60)"]) jobs.push(await Job.submit({ ...shared.target, code, metadata }));
      const [one, two, running] = jobs as [Job, Job, Job];
      await one.wait();
      await two.wait();
      const found = await Job.list({ ...shared.target, metadata, limit: 2 });
      assert.deepEqual(found.map((item) => item.id), [running.id, two.id, one.id]);
      assert.ok(!("stdout" in (found[1] as object)));
      assert.equal(found[1]?.exitCode, 0);
      assert.deepEqual((await Job.list({ ...shared.target, metadata, status: "active" })).map((item) => item.id), [running.id]);
      assert.deepEqual((await Job.list({ ...shared.target, metadata, status: ["success", "failed"], order: "desc" })).length, 2);
      await running.cancel();
      await until(async () => (await Job.list({ ...shared.target, metadata, status: "active" })).length === 0, "no job is active");
    });

    it("are one job for one idempotency key", async (t) => {
      if (!needs(t, shared, "POST", path)) return;
      const options = { ...shared.target, code: "print('once')", idempotencyKey: `key-${Date.now()}-${Math.random()}` };
      const [first, second] = [await Job.submit(options), await Job.submit(options)];
      assert.equal(first.id, second.id);
      assert.notEqual((await Job.submit({ ...options, idempotencyKey: `${options.idempotencyKey}-2` })).id, first.id);
    });

    it("are refused with the field at fault", async (t) => {
      if (!needs(t, shared, "POST", path)) return;
      const refused = async (options: object): Promise<string> => {
        const error = await fails(Job.submit({ ...shared.target, code: "print(1)", ...options }));
        return `${error.status} ${error.reason} ${error.message}`;
      };
      assert.match(await refused({ language: "cobol" }), /^422 unprocessable .*cobol.*python/);
      assert.match(await refused({ timeout: 0 }), /^400 invalid_request .*timeout_seconds/);
      assert.match(await refused({ priority: 10 }), /^400 invalid_request .*priority/);
      assert.match(await refused({ sessionId: "ses_00000000000000000000000000" }), /^422 unprocessable .*session/);
      assert.match(await refused({ code: undefined }), /^400 invalid_request .*code/);
      assert.equal((await fails(Job.connect("job_00000000000000000000000000", shared.target))).status, 404);
    });

    it("can be left by an abort, and run on", async (t) => {
      if (!needs(t, shared, "GET", `${path}/{id}/stream`)) return;
      const job = await Job.submit({ ...shared.target, language: "bash", code: "echo begun; sleep 60" });
      const controller = new AbortController();
      const waiting = fails(job.wait({ signal: controller.signal }));
      const error = await fails((async () => {
        for await (const frame of job.stream({ signal: controller.signal })) {
          if (frame.type === "stdout") controller.abort();
        }
      })());
      assert.equal(error.name, "AbortError");
      assert.equal((await waiting).name, "AbortError");
      assert.equal((await fails(Job.submit({ ...shared.target, code: "", signal: controller.signal }))).name, "AbortError");
      assert.equal((await job.refresh()).status, "running");
      await job.cancel();
    });
  });
}
