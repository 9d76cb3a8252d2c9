import { delay } from "./abort.js";
import { fromBase64, toBase64 } from "./bytes.js";
import { Client, type ClientOptions, type RequestOptions, read } from "./client.js";
import { CaySandboxError } from "./errors.js";
import type * as model from "./generated/model.js";
import type * as wire from "./generated/wire.js";
import { type JobFrame, followJob } from "./jobstream.js";
import { List, type ListFields, listQuery, pageOf } from "./list.js";
import { defined } from "./names.js";
import { retryDelay } from "./retry.js";
import { type FilePath, bodyOf, pathQuery } from "./tree.js";
import type { Abortable, NetworkRules, OutputFile } from "./types.js";

const longestWait = 60; // seconds that one request waits for the end
const pause = 100; // milliseconds between two such requests
const maxFailures = 20; // in a row, of a wait: some 45 s, which a restart of the server is within

export type JobStatus = model.Job["status"];

/** A job as it is, or was when it was asked for. Its output is the head and the tail where it was long. */
export type JobInfo = Omit<model.Job, "outputs"> & { outputs: OutputFile[] };

/** A job in a list, which leaves out output and files. */
export type JobSummary = model.JobSummary;

/** A program to be run once, and what it is run in. */
export interface SubmitOptions extends Abortable {
  code: string;
  /** Default python. */
  language?: string;
  /** All of its input. */
  stdin?: string | Uint8Array;
  env?: Record<string, string>;
  metadata?: Record<string, string>;
  packages?: string[];
  /** Hosts that it may reach; default none. */
  network?: NetworkRules;
  /** A session's files at /session, where the program starts then. */
  sessionId?: string;
  /** Use the session beside others that ask for it so as well. */
  sessionShared?: boolean;
  /** Seconds that the program may run; default 60. */
  timeout?: number;
  /** Seconds that it may wait for its turn; default 3600. */
  queueTimeout?: number;
  /** 0 to 9; default 5. Of one project's jobs those with a higher one come first. */
  priority?: number;
  cpu?: number;
  memoryMb?: number;
  diskGb?: number;
  pids?: number;
  /** Makes a repeated submit answer with the first one's job; made where it is missing. */
  idempotencyKey?: string;
}

export interface ListJobsOptions extends ListFields {
  /** "active" stands for queued and running. */
  status?: JobStatus | "active" | (JobStatus | "active")[];
  sessionId?: string;
}

export interface StreamOptions extends Abortable {
  /** The `seq` of the last frame seen; default 0: from the first byte on. */
  seq?: number;
}

/**
 * A program that the server runs once, in a sandbox of its own, and whose output and results it keeps. It is the server's: leaving it
 * alone ends nothing.
 */
export class Job {
  readonly id: string;
  readonly #client: Client;
  readonly #path: string;
  #info: JobInfo;

  private constructor(client: Client, info: JobInfo) {
    this.id = info.id;
    this.#client = client;
    this.#path = pathOf(info.id);
    this.#info = info;
  }

  /** Puts a program in the queue. */
  static async submit(options: SubmitOptions & ClientOptions): Promise<Job> {
    return await Job.submitWith(new Client(options), options);
  }

  /** @internal As submit, over a connection that there is. */
  static async submitWith(client: Client, options: SubmitOptions): Promise<Job> {
    const { signal, idempotencyKey } = options;
    return new Job(client, infoOf(await client.json({ method: "POST", path: "/v1/jobs", json: submitRequest(options), signal, idempotent: true, idempotencyKey })));
  }

  /** Takes up a job by its id. */
  static async connect(id: string, options: ClientOptions & Abortable = {}): Promise<Job> {
    const client = new Client(options);
    return new Job(client, infoOf(await client.json({ method: "GET", path: pathOf(id), signal: options.signal })));
  }

  /** Jobs of the key's project, newest first. Await the list, or loop over it page by page. */
  static list(options: ListJobsOptions & ClientOptions = {}): List<JobSummary> {
    const client = new Client(options);
    return new List(async (cursor) => pageOf(await client.json<{ items: JobSummary[] | null; nextCursor: string | null }>({
      method: "GET", path: "/v1/jobs", query: { ...listQuery(options, options.status, cursor), session_id: options.sessionId }, signal: options.signal,
    })));
  }

  /** The job as it was when it was last asked for. */
  get info(): JobInfo {
    return this.#info;
  }

  get status(): JobStatus {
    return this.#info.status;
  }

  /** Asks for the job as it is now; while it runs, with the output so far. */
  refresh(options: Abortable = {}): Promise<JobInfo> {
    return this.#get({}, options);
  }

  /**
   * Waits for the end, over broken connections and restarts of the server. A program that failed is a result: see `status`. With a
   * timeout in seconds it is an error with reason `timeout` when the job has not ended by then; the job runs on.
   */
  async wait(options: Abortable & { timeout?: number } = {}): Promise<JobInfo> {
    const deadline = options.timeout === undefined ? Infinity : Date.now() + options.timeout * 1000;
    for (let failures = 0; !hasEnded(this.#info); ) {
      const left = Math.max(0, deadline - Date.now());
      const seconds = Math.min(longestWait, left / 1000);
      try {
        await this.#get({ wait_seconds: seconds }, options, seconds + 30);
        failures = 0;
      } catch (error) {
        const wait = retryDelay(error, failures);
        if (wait === undefined || ++failures > maxFailures || left === 0) throw error;
        await delay(Math.min(wait, left), options.signal);
        continue;
      }
      if (left === 0 && !hasEnded(this.#info)) {
        throw new CaySandboxError(`job ${this.id} has not ended in time; it is ${this.status}`, { reason: "timeout", body: this.#info });
      }
      if (!hasEnded(this.#info)) await delay(Math.min(pause, left), options.signal); // a server that goes away answers at once
    }
    return this.#info;
  }

  /** Ends the job, in whatever state it is, and answers it once it has ended. The output so far is kept; what has ended stays as it is. */
  async cancel(options: Abortable = {}): Promise<JobInfo> {
    await this.#take(this.#client.json({ method: "DELETE", path: this.#path, signal: options.signal, timeout: 90 }));
    return await this.wait(options);
  }

  /**
   * Yields what happens to the job and what it writes, from its first byte or after `seq`, until `exit` or `error`, the last frame. A
   * connection that breaks is opened again after the last frame that came, without loss or doubling, a bounded number of times. A job
   * that the platform had to begin anew says `status` with the next attempt, and its output begins anew. Leaving the loop closes the
   * connection; the job runs on.
   */
  stream(options: StreamOptions = {}): AsyncGenerator<JobFrame> {
    return followJob({ client: this.#client, path: `${this.#path}/stream`, seq: options.seq ?? 0, signal: options.signal });
  }

  /** A file that the program left in /output, by the path that `outputs` gives, or by its entry there. */
  async readOutput(path: FilePath, options: Abortable = {}): Promise<Uint8Array> {
    const request = this.#outputRequest(path, options);
    const response = await this.#client.send(request);
    return new Uint8Array(await read(response.arrayBuffer(), request));
  }

  /** As readOutput, as it comes. Cancelling the stream ends the download. */
  async readOutputStream(path: FilePath, options: Abortable = {}): Promise<ReadableStream<Uint8Array>> {
    const request = this.#outputRequest(path, options);
    return bodyOf(await this.#client.send(request), request);
  }

  #outputRequest(path: FilePath, options: Abortable): RequestOptions {
    return { method: "GET", path: `${this.#path}/outputs`, rawQuery: pathQuery("path", path), signal: options.signal };
  }

  #get(query: { wait_seconds?: number }, options: Abortable, timeout?: number): Promise<JobInfo> {
    return this.#take(this.#client.json({ method: "GET", path: this.#path, query, signal: options.signal, timeout }));
  }

  async #take(answer: Promise<model.Job>): Promise<JobInfo> {
    return (this.#info = infoOf(await answer));
  }
}

function pathOf(id: string): string {
  return `/v1/jobs/${encodeURIComponent(id)}`;
}

function hasEnded(info: JobInfo): boolean {
  return info.finishedAt !== null;
}

function infoOf(job: model.Job): JobInfo {
  const outputs = (job.outputs ?? []).map(({ dataBase64, ...file }) => ({ ...file, ...(dataBase64 === undefined ? {} : { data: fromBase64(dataBase64) }) }));
  return { ...job, outputs };
}

function submitRequest(options: SubmitOptions): Record<string, unknown> {
  const { stdin } = options;
  return defined({
    code: options.code, language: options.language, stdin: typeof stdin === "string" ? stdin : undefined,
    stdin_base64: stdin instanceof Uint8Array ? toBase64(stdin) : undefined, env: options.env, metadata: options.metadata, packages: options.packages,
    network: options.network, session_id: options.sessionId, session_shared: options.sessionShared,
    timeout_seconds: options.timeout, queue_timeout_seconds: options.queueTimeout, priority: options.priority,
    cpu: options.cpu, memory_mb: options.memoryMb, disk_gb: options.diskGb, pids: options.pids,
  } satisfies { [K in keyof wire.JobRequest]-?: unknown });
}
