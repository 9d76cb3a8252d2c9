// Jobs of the fake: each a process of this machine in a directory of its own, with the frames of its stream at their positions.
import { EventEmitter, once } from "node:events";
import * as fs from "node:fs";
import type { IncomingMessage, ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { changes, interpreters, look } from "./code.js";
import { FakeFiles } from "./files.js";
import type { FakeHistory } from "./history.js";
import { EventStream, Keyed, Problem, notFound, page, readJson, sendJson } from "./http.js";
import { FakeProcess, newId } from "./process.js";
import type { FakeSessions, SessionUse } from "./sessions.js";

type Fields = Record<string, unknown>;

const known = new Set(["code", "language", "stdin", "stdin_base64", "env", "metadata", "packages", "network", "session_id", "session_shared", "timeout_seconds",
  "queue_timeout_seconds", "priority", "cpu", "memory_mb", "disk_gb", "pids"]);
const answered = 1024 * 1024; // bytes of a stream that the job's object has

class FakeJob extends EventEmitter {
  readonly id = newId("job");
  readonly sandboxId = newId("sbx");
  readonly fields: Fields;
  readonly queuedAt = new Date();
  readonly root = fs.mkdtempSync(join(tmpdir(), "cay-fake-job-"));
  status = "queued";
  process: FakeProcess | undefined;
  canceled = false;
  #startedAt: Date | undefined;
  #finishedAt: Date | undefined;
  readonly #history: FakeHistory;
  #left: Fields = { files_changed: [], files_truncated: false, outputs: [] };

  constructor(fields: Fields, history: FakeHistory) {
    super();
    this.setMaxListeners(0);
    this.fields = fields;
    this.#history = history;
    new FakeFiles(this.root); // makes the directories
    this.#tell("");
  }

  get ended(): boolean {
    return this.#finishedAt !== undefined;
  }

  get #cwd(): string {
    return this.fields["session_id"] === undefined ? "/workspace" : "/session";
  }

  /** Runs to the end, in the session where there is one. */
  async run(use: SessionUse | undefined): Promise<void> {
    if (this.canceled) return this.#finish("canceled");
    use?.mount(this.root);
    const language = String(this.fields["language"] ?? "python");
    const code = String(this.fields["code"]).replaceAll(/(?<=["'])\/output\//g, `${this.root}/output/`); // nothing else tells it where its root is
    const command = (interpreters[language] as (code: string) => string[])(code);
    const before = look(this.root);
    const { stdin, stdin_base64, env, timeout_seconds } = this.fields as { stdin?: string; stdin_base64?: string; env?: Record<string, string>; timeout_seconds?: number };
    this.process = new FakeProcess(
      { command, stdin, stdin_base64, timeout_seconds, env: { PYTHONUNBUFFERED: "1", ...env }, max_output_bytes: answered },
      { root: this.root, cwd: this.#cwd, env: {}, stdinOpen: false, defaultTimeout: 60 },
    );
    this.#startedAt = new Date();
    this.#become("running");
    await this.process.ended();
    const { exit } = this.process;
    this.#left = changes(this.root, before);
    this.#finish(this.canceled ? "canceled" : exit?.["timed_out"] === true ? "timeout" : exit?.["exit_code"] === 0 ? "success" : "failed");
  }

  cancel(): void {
    this.canceled = true;
    if (this.status === "queued") this.#finish("canceled");
    else this.process?.signal("KILL", true);
  }

  discard(): void {
    this.process?.signal("KILL", true);
    fs.rmSync(this.root, { recursive: true, force: true });
  }

  finished(): Promise<unknown> {
    return this.ended ? Promise.resolve() : once(this, "finished");
  }

  #finish(status: string): void {
    if (this.ended) return;
    this.#finishedAt = new Date();
    this.#become(status);
    this.#record();
    this.emit("finished");
  }

  #become(status: string): void {
    const from = this.status;
    this.status = status;
    this.#tell(from);
    this.emit("status");
  }

  #tell(from: string): void {
    const owner = { job_id: this.id, ...(this.#startedAt === undefined ? {} : { sandbox_id: this.sandboxId }) };
    this.#history.event(owner, "job_status", { from, to: this.status, attempt: this.#startedAt === undefined ? 0 : 1 });
  }

  #record(): void {
    const { session_id = null, language = "python", code } = this.fields;
    const how = {
      sandbox_id: this.#startedAt === undefined ? null : this.sandboxId, session_id, language, command: String(code), outcome: this.status, ok: this.status === "success",
    };
    if (this.process === undefined) this.#history.record("job", this.id, this.queuedAt, how);
    else this.#history.recordProcess("job", this.process, { ...how, id: this.id });
  }

  output(path: string): Buffer {
    if (!(this.#left["outputs"] as Fields[]).some((file) => file["path"] === path)) throw notFound(`output ${path}`);
    return fs.readFileSync(this.root + path);
  }

  /** How it ended, as its object and its last frame say. */
  get #end(): Fields {
    const { exit } = this.process ?? {};
    return { exit_code: exit?.["exit_code"] ?? null, signal: exit?.["signal"] ?? null, timed_out: exit?.["timed_out"] ?? false, duration_ms: exit?.["duration_ms"] ?? null };
  }

  /** The object; a list leaves out the output and the files. */
  info(inList: boolean): Fields {
    const f = this.fields;
    const item = {
      id: this.id, status: this.status, language: f["language"] ?? "python", ...this.#end, queued_at: this.queuedAt.toISOString(),
      started_at: this.#startedAt?.toISOString() ?? null, finished_at: this.#finishedAt?.toISOString() ?? null, install_log: null,
      metrics: { cpu_ms: null, peak_memory_mb: null, queue_ms: 0, boot_ms: null }, error: null, session_id: f["session_id"] ?? null, session_shared: f["session_shared"] ?? false,
      sandbox_id: this.#startedAt === undefined ? null : this.sandboxId, attempt: this.#startedAt === undefined ? 0 : 1, priority: f["priority"] ?? 5,
      timeout_seconds: f["timeout_seconds"] ?? 60, metadata: f["metadata"] ?? {},
    };
    if (inList) return item;
    const { stdout_gap, stderr_gap, stdout = "", stderr = "" } = this.process?.answer("utf8") ?? {};
    const size = (stream: "stdout" | "stderr"): number => this.process?.bytes(stream).length ?? 0;
    const never = { stdout: false, stderr: false };
    return { ...item, outputs_truncated: false, lossy: never, truncated: never, stdout, stderr, stdout_size: size("stdout"), stderr_size: size("stderr"), stdout_gap, stderr_gap, ...this.#left };
  }

  /** Sends the frames after a position, live, until the last one. */
  async stream(res: ServerResponse, after: number): Promise<void> {
    const events = new EventStream(res);
    const send = async (type: string, seq: number, members: Fields): Promise<void> => {
      if (seq > after) await events.send(type, { type, seq, ts: new Date().toISOString(), ...members }, seq);
    };
    await send("status", 1, { data: "queued", attempt: 1 });
    while (this.process === undefined && !this.ended && !events.isGone) await Promise.race([once(this, "status"), events.gone]);
    let seq = 1;
    if (this.process !== undefined) {
      await send("status", 2, { data: "running", attempt: 1 });
      for await (const { stream, data, offset } of this.process.read(Math.max(0, after - 2))) {
        if (events.isGone) return;
        await send(stream, 2 + offset + data.length, textOrBytes(data));
      }
      await this.finished();
      seq = 2 + this.process.size;
    }
    if (this.process === undefined) await send("error", seq + 1, { data: this.status, reason: "canceled", detail: "the job was canceled before it ran" });
    else await send("exit", seq + 1, { data: this.status, ...this.#end });
    events.end();
  }
}

function textOrBytes(data: Buffer): Fields {
  const text = data.toString();
  return Buffer.from(text).equals(data) ? { data: text } : { data_base64: data.toString("base64") };
}

export class FakeJobs {
  readonly #sessions: FakeSessions;
  readonly #history: FakeHistory;
  readonly #keyed = new Keyed<FakeJob>();
  readonly jobs = new Map<string, FakeJob>();

  constructor(sessions: FakeSessions, history: FakeHistory) {
    this.#sessions = sessions;
    this.#history = history;
  }

  stop(): void {
    for (const job of this.jobs.values()) job.discard();
  }

  release(id: string, name: string): void {
    fs.writeFileSync(join((this.jobs.get(id) as FakeJob).root, "workspace", name), "");
  }

  async handle(req: IncomingMessage, res: ServerResponse, id: string | undefined, operation: string | undefined, query: URLSearchParams): Promise<void> {
    if (id === undefined) {
      if (req.method === "GET") return this.#list(res, query);
      const fields = await readJson(req);
      const job = this.#keyed.get(req, () => this.#submit(fields));
      await wait(job, query);
      res.setHeader("location", `/v1/jobs/${job.id}`);
      return sendJson(res, job.ended && query.has("wait_seconds") ? 200 : 202, job.info(false));
    }
    const job = this.jobs.get(id);
    if (job === undefined) throw notFound("job");
    switch (`${req.method} ${operation ?? ""}`) {
      case "GET ":
        await wait(job, query);
        return sendJson(res, 200, job.info(false));
      case "DELETE ":
        job.cancel();
        await job.finished();
        return sendJson(res, 200, job.info(false));
      case "GET outputs": {
        const output = job.output(query.get("path") ?? "");
        return void res.writeHead(200, { "content-type": "application/octet-stream" }).end(output);
      }
      case "GET stream":
        return job.stream(res, Number(req.headers["last-event-id"] ?? query.get("seq") ?? 0));
      default:
        throw notFound("route");
    }
  }

  #submit(fields: Fields): FakeJob {
    const refuse = (field: string, why: string): Problem => new Problem(400, "invalid_request", `${field}: ${why}`);
    for (const name of Object.keys(fields)) if (!known.has(name)) throw refuse(name, "there is no such field");
    if (typeof fields["code"] !== "string") throw refuse("code", "it is missing");
    const { timeout_seconds: timeout = 60, priority = 5, packages = [] } = fields as { timeout_seconds?: number; priority?: number; packages?: unknown[] };
    if (!(timeout > 0 && timeout <= 86_400)) throw refuse("timeout_seconds", "it has to be more than 0 and at most 86400");
    if (!Number.isInteger(priority) || priority < 0 || priority > 9) throw refuse("priority", "it has to be 0 to 9");
    if (packages.length > 0) throw new Problem(501, "not_implemented", "packages: they are not installed yet");
    const language = String(fields["language"] ?? "python");
    if (interpreters[language] === undefined) throw new Problem(422, "unprocessable", `language: there is no ${language}; there are ${Object.keys(interpreters).join(", ")}`);
    const session = fields["session_id"] === undefined ? undefined : this.#sessions.find(String(fields["session_id"]));
    const job = new FakeJob(fields, this.#history);
    this.jobs.set(job.id, job);
    const shared = fields["session_shared"] === true;
    setImmediate(() => void (session === undefined ? job.run(undefined) : session.turn(job.sandboxId, shared, (use) => job.run(use))));
    return job;
  }

  #list(res: ServerResponse, query: URLSearchParams): void {
    const statuses = (query.get("status") ?? "").split(",").flatMap((s) => (s === "active" ? ["queued", "running"] : s === "" ? [] : [s]));
    const session = query.get("session_id");
    const found = [...this.jobs.values()].reverse().filter(({ status, fields }) =>
      (statuses.length === 0 || statuses.includes(status)) && (session === null || fields["session_id"] === session) && hasMetadata(fields, query));
    sendJson(res, 200, page(found.map((job) => job.info(true)), query));
  }
}

export function hasMetadata(fields: Fields, query: URLSearchParams): boolean {
  const metadata = (fields["metadata"] ?? {}) as Record<string, string>;
  return [...query].every(([key, value]) => !key.startsWith("metadata.") || metadata[key.slice(9)] === value);
}

async function wait(job: FakeJob, query: URLSearchParams): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  await Promise.race([job.finished(), new Promise((resolve) => (timer = setTimeout(resolve, Number(query.get("wait_seconds") ?? 0) * 1000)))]);
  clearTimeout(timer);
}
