import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { Audit, CaySandboxError, Events, History, type HistoryRecord, Job, type ProjectEvent, Sandbox, Session, Usage } from "../../src/index.js";
import type { Shared } from "../suite.js";
import { collect, fails, needs, until } from "./expect.js";

const unknown = "prc_00000000000000000000000000";

/** The record of what has ended, which may come a moment after its end. */
export async function recordOf(id: string, target: Shared["target"]): Promise<HistoryRecord> {
  let found: HistoryRecord | undefined;
  await until(async () => {
    try {
      found = await History.get(id, target);
    } catch (error) {
      if (!(error instanceof CaySandboxError) || error.status !== 404) throw error;
    }
    return found !== undefined;
  }, `there is a record of ${id}`);
  return found as HistoryRecord;
}

export function historyTests(shared: Shared): void {
  describe("the history", () => {
    it("has commands, programs and processes once they have ended, and is searched", async (t) => {
      if (!needs(t, shared, "GET", "/v1/history")) return;
      const { sandbox, target } = shared;
      const mark = `mark${Date.now()}`;
      const failed = await sandbox.exec(`printf ${mark}; printf err >&2; exit 3`);
      const program = await sandbox.runCode(`print('${mark}')`, { language: "python" });
      const running = await sandbox.processes.start(`echo ${mark}; exec sleep 100`, { name: mark });
      assert.equal((await fails(History.get(running.id ?? "", target))).status, 404);
      await sandbox.processes.kill(running);

      const command = await recordOf(failed.processId, target);
      assert.deepEqual([command.kind, command.sandboxId, command.outcome, command.ok, command.exitCode, command.signal], ["exec", sandbox.id, "exited", false, 3, null]);
      assert.deepEqual([command.stdoutBytes, command.stderrBytes, command.language], [mark.length, 3, null]);
      assert.ok(command.command.includes(mark), command.command);
      assert.match(command.keyId ?? "", /^key_/);
      assert.ok(Date.parse(command.endedAt ?? "") >= Date.parse(command.startedAt ?? ""));
      const code = await recordOf(program.processId, target);
      assert.deepEqual([code.kind, code.language, code.ok, code.exitCode], ["code", "python", true, 0]);
      const process = await recordOf(running.id ?? "", target);
      assert.deepEqual([process.kind, process.name, process.ok, process.signal], ["process", mark, false, "KILL"]);

      const ids = async (options: Parameters<typeof History.list>[0]): Promise<string[]> =>
        (await collect(History.list({ ...target, sandboxId: sandbox.id, text: mark.toUpperCase(), ...options }))).map((record) => record.id).sort();
      const all = [failed.processId, program.processId, running.id].sort();
      assert.deepEqual(await ids({ limit: 1 }), all);
      assert.deepEqual(await ids({ kind: ["exec", "code"] }), [failed.processId, program.processId].sort());
      assert.deepEqual(await ids({ ok: true }), [program.processId]);
      assert.deepEqual(await ids({ outcome: ["killed", "timeout"] }), [running.id]);
      assert.deepEqual(await ids({ keyId: command.keyId ?? "", allProjects: true }), all);
      assert.deepEqual(await ids({ to: new Date(Date.parse(command.endedAt ?? "")) }), []);
      const newest = (await History.list({ ...target, text: mark })).map((record) => record.endedAt ?? "");
      assert.deepEqual(newest, [...newest].sort().reverse());
      assert.deepEqual((await History.list({ ...target, text: mark, order: "asc" })).map((record) => record.endedAt), [...newest].sort());

      assert.equal((await fails(History.get(unknown, target))).reason, "not_found");
      const refused = await fails(History.list({ ...target, kind: "dream" }));
      assert.deepEqual([refused.status, refused.reason, (refused.body as { field?: string }).field], [400, "invalid_request", "kind"]);
    });

    it("has sandboxes, and what they took", async (t) => {
      if (!needs(t, shared, "GET", "/v1/usage")) return;
      const { target } = shared;
      const sandbox = await Sandbox.create({ ...target.create, memoryMb: 128 });
      await sandbox.close();
      const record = await recordOf(sandbox.id, target);
      assert.deepEqual([record.kind, record.sandboxId, record.outcome, record.ok, record.exitCode], ["sandbox", sandbox.id, "deleted", true, null]);
      const usage = await Usage.get({ ...target, sandboxId: sandbox.id, groupBy: ["day", "sandbox"], from: new Date(Date.now() - 86_400_000) });
      assert.deepEqual(usage.groupBy, ["day", "sandbox"]);
      assert.ok(usage.items.length > 0 && usage.items.every((item) => item.sandboxId === sandbox.id && item.projectId === undefined && item.sandboxes === 1), JSON.stringify(usage));
      assert.ok(usage.items.every((item) => item.day !== undefined && item.day >= usage.from && item.day <= usage.to));
      const { total } = usage;
      assert.equal(total.sandboxes, 1);
      assert.ok(total.runningSeconds > 0, JSON.stringify(total));
      assert.ok(Math.abs(total.allocatedMemoryMbSeconds - 128 * total.runningSeconds) < 1, JSON.stringify(total));
      const whole = await Usage.get(target);
      assert.deepEqual(whole.groupBy, ["day"]);
      assert.ok(whole.total.runningSeconds >= total.runningSeconds);
      assert.equal((await fails(Usage.get({ ...target, from: "2026-01-02", to: "2026-01-01" }))).status, 400);
    });

    it("has jobs and sessions, whose changes are followed as events of the project", async (t) => {
      if (!needs(t, shared, "GET", "/v1/events") || !needs(t, shared, "POST", "/v1/sessions") || !needs(t, shared, "POST", "/v1/jobs")) return;
      const { target } = shared;
      const before = await Events.list({ ...target, limit: 200 });
      const session = await Session.create({ ...target, name: `n.${Date.now()}` });
      const job = await Job.submit({ ...target, language: "bash", code: "echo followed", sessionId: session.id });
      const seen: ProjectEvent[] = [];
      for await (const event of Events.follow({ ...target, after: before[before.length - 1]?.id ?? "0", types: ["job_status", "session_status"], signal: AbortSignal.timeout(300_000) })) {
        if (!("data" in event)) continue;
        seen.push(event);
        if (event.jobId === job.id && event.data["to"] === "success") await session.delete({ force: true });
        if (event.sessionId === session.id && event.data["to"] === "deleted") break;
      }
      const changes = (mine: ProjectEvent[]): unknown[] => mine.map((event) => event.data["to"]);
      const jobs = seen.filter((event) => event.jobId === job.id);
      assert.deepEqual([jobs[0]?.data["from"], changes(jobs)], ["", ["queued", "running", "success"]]);
      assert.ok(changes(seen.filter((event) => event.sessionId === session.id)).includes("deleted"));
      assert.ok(seen.every((event, i) => Number(event.id) > Number(seen[i - 1]?.id ?? 0)));
      const [first] = seen;
      const listed = await Events.list({ ...target, after: first?.id ?? "", types: ["job_status", "session_status"], limit: 1 });
      assert.deepEqual(listed.slice(0, seen.length - 1), seen.slice(1));

      const ran = await recordOf(job.id, target);
      assert.deepEqual([ran.kind, ran.sessionId, ran.language, ran.outcome, ran.ok, ran.exitCode], ["job", session.id, "bash", "success", true, 0]);
      const ended = await recordOf(session.id, target);
      assert.deepEqual([ended.kind, ended.name, ended.outcome, ended.ok], ["session", session.info.name, "deleted", true]);
      assert.ok((await History.list({ ...target, sessionId: session.id })).some((record) => record.id === job.id));
    });
  });

  describe("the audit", () => {
    it("says who changed what, and who was refused", async (t) => {
      if (!needs(t, shared, "GET", "/v1/audit")) return;
      const { sandbox, target } = shared;
      await sandbox.update({ metadata: { audited: "yes" } });
      await until(async () => (await Audit.list({ ...target, object: sandbox.id, action: "update-sandbox" })).length > 0, "there is an entry of the update");
      const [entry] = await Audit.list({ ...target, object: sandbox.id, action: "update-sandbox" });
      assert.deepEqual([entry?.status, entry?.reason, entry?.object], [200, null, sandbox.id]);
      assert.match(entry?.requestId ?? "", /^req_/);
      assert.match(entry?.keyId ?? "", /^key_/);
      const [created] = await Audit.list({ ...target, object: sandbox.id, action: "create-sandbox", keyId: entry?.keyId ?? "" });
      assert.ok(created !== undefined && Number(created.id) < Number(entry?.id));
      assert.deepEqual((await Audit.list({ ...target, object: sandbox.id, limit: 1, order: "asc" }))[0], created);
      assert.deepEqual(await Audit.list({ ...target, object: sandbox.id, action: "exec" }), []);

      assert.equal((await fails(Audit.list({ ...target, apiKey: "cay_wrong" }))).status, 401);
      await until(async () => (await Audit.list({ ...target, allProjects: true }).page()).items.some((one) => one.status === 401 && one.reason === "unauthorized" && one.keyId === null),
        "there is an entry of the refusal");
      assert.equal((await fails(Audit.list({ ...target, action: "no-such-operation" }))).status, 400);
    });
  });
}
