import "./dispose.js";
import { Client, type ClientOptions } from "./client.js";
import { codeRequest, runCode, runCodeStream } from "./code.js";
import { Contexts } from "./contexts.js";
import { CaySandboxError } from "./errors.js";
import { type Command, collect, execRequest, execResult, follow, startRequest } from "./exec.js";
import type { FollowOptions, HistoryOptions, Reset } from "./feed.js";
import { Files } from "./files.js";
import type * as wire from "./generated/wire.js";
import { List, listQuery, pageOf } from "./list.js";
import { defined } from "./names.js";
import { type LogEntry, type Metrics, type MetricsOptions, Observe, type SandboxEvent } from "./observe.js";
import { Ports } from "./ports.js";
import { Processes, type ProcessRef } from "./processes.js";
import { type AttachOptions, LiveProcess, type LiveProcessOptions, type TerminalOptions, liveFields } from "./live.js";
import type {
  Abortable, CodeEvent, CodeOptions, CodeResult, CreateOptions, ExecEvent, ExecOptions, ExecResult, ForkOptions, ListOptions, NetworkPolicy,
  NetworkRules, SandboxInfo, SnapshotInfo, SnapshotOptions,
} from "./types.js";

const createWait = 60; // seconds that one request waits for READY
const defaultReadyTimeout = 300;

/** Configuration and what to create. */
export type CreateSandboxOptions = CreateOptions & ClientOptions;

/** One fork: the sandbox, or why it could not be made. */
export type Fork = { sandbox: Sandbox; error?: undefined } | { sandbox?: undefined; error: { reason: string; detail: string } };

/** A sandbox: a machine of its own for code that is not trusted. Durations are in seconds. */
export class Sandbox implements AsyncDisposable {
  readonly id: string;
  readonly files: Files;
  readonly processes: Processes;
  readonly contexts: Contexts;
  readonly ports: Ports;
  readonly #client: Client;
  readonly #path: string;
  readonly #observe: Observe;
  #info: SandboxInfo;
  #closing: Promise<void> | undefined;

  private constructor(client: Client, info: SandboxInfo) {
    this.id = info.id;
    this.#client = client;
    this.#info = info;
    this.#path = pathOf(info.id);
    this.files = new Files(client, this.#path);
    this.processes = new Processes(client, this.#path);
    this.contexts = new Contexts(client, this.#path);
    this.ports = new Ports(client, this.#path);
    this.#observe = new Observe(client, this.#path);
  }

  /** Creates a sandbox and waits until it is READY. */
  static async create(options: CreateSandboxOptions = {}): Promise<Sandbox> {
    const client = new Client(options);
    const deadline = Date.now() + (options.readyTimeout ?? defaultReadyTimeout) * 1000;
    const wait = Math.min(createWait, options.readyTimeout ?? createWait);
    const info = await client.json<SandboxInfo>({
      method: "POST",
      path: "/v1/sandboxes",
      query: { wait_seconds: wait },
      json: createRequest(options),
      signal: options.signal,
      idempotent: true,
      idempotencyKey: options.idempotencyKey,
      timeout: wait + 60,
    });
    return new Sandbox(client, await untilReady(client, info, deadline, options.signal));
  }

  /** Takes up a sandbox by its id. One that is still being created is awaited. */
  static async connect(id: string, options: ClientOptions & Abortable = {}): Promise<Sandbox> {
    const client = new Client(options);
    const info = await client.json<SandboxInfo>({ method: "GET", path: pathOf(id), signal: options.signal });
    if (info.status !== "CREATING") return new Sandbox(client, info);
    return new Sandbox(client, await untilReady(client, info, Date.now() + defaultReadyTimeout * 1000, options.signal));
  }

  /** Sandboxes of the key's project, newest first. Await the list, or loop over it page by page. */
  static list(options: ListOptions & ClientOptions = {}): List<SandboxInfo> {
    const client = new Client(options);
    return new List(async (cursor) => pageOf(await client.json<{ items: SandboxInfo[] | null; nextCursor: string | null }>({
      method: "GET", path: "/v1/sandboxes", signal: options.signal,
      query: { ...listQuery(options, options.status, cursor), session_id: options.sessionId, managed: options.managed },
    })));
  }

  /** The sandbox as it was when it was last asked for. */
  get info(): SandboxInfo {
    return this.#info;
  }

  /** Asks for the sandbox as it is now. */
  refresh(options: Abortable = {}): Promise<SandboxInfo> {
    return this.#take(this.#client.json({ method: "GET", path: this.#path, signal: options.signal }));
  }

  /** Runs a command to its end. A string is run by the sandbox's shell; a list is a program and its arguments. */
  async exec(command: Command, options: ExecOptions = {}): Promise<ExecResult> {
    return execResult(await collect(this.#client, `${this.#path}/exec`, execRequest(command, options), options));
  }

  /** Runs a command and yields its events; the last one is `exit`. Leaving the loop closes the stream, and the command runs on. */
  async *execStream(command: Command, options: ExecOptions = {}): AsyncGenerator<ExecEvent> {
    const start = await startRequest(`${this.#path}/exec`, execRequest(command, options), options);
    for await (const event of follow({ client: this.#client, sandbox: this.#path, start, last: "exit", signal: options.signal })) {
      if (event.type !== "result") yield event;
    }
  }

  /** Runs a command with live input. An abort kills it. */
  execWs(command: Command, options: LiveProcessOptions = {}): Promise<LiveProcess<ExecEvent, ExecResult>> {
    const start = { ...execRequest(command, options), ...liveFields(options) };
    return LiveProcess.open({ ...this.#live("exec", options), start });
  }

  /** A login shell on a terminal. Leaving hangs it up. */
  terminal(options: TerminalOptions = {}): Promise<LiveProcess<ExecEvent, ExecResult>> {
    const { cols, rows, user, cwd } = options;
    return LiveProcess.open({ ...this.#live("terminal", options), query: { cols: cols ?? 80, rows: rows ?? 24, user, cwd } });
  }

  /** Live input and output of a process that runs, from an offset of its output on. */
  attach(process: ProcessRef, options: AttachOptions = {}): Promise<LiveProcess<ExecEvent, ExecResult>> {
    const id = typeof process === "object" ? (process.id ?? process.pid) : process;
    const offset = options.offset ?? 0;
    return LiveProcess.open({ ...this.#live("exec", options), query: { process_id: id, offset }, offset });
  }

  /** Runs code to its end: output, what it changed, what it left in /output, and in a context its results. */
  runCode(code: string, options: CodeOptions = {}): Promise<CodeResult> {
    return runCode(this.#client, this.#path, code, options);
  }

  /** Runs code and yields its events; the last one is `result`. */
  runCodeStream(code: string, options: CodeOptions = {}): AsyncGenerator<CodeEvent> {
    return runCodeStream(this.#client, this.#path, code, options);
  }

  /** Runs code with live input. An abort kills it. */
  runCodeWs(code: string, options: LiveProcessOptions & Pick<CodeOptions, "language" | "contextId"> = {}): Promise<LiveProcess<CodeEvent, CodeResult>> {
    const start = { ...codeRequest(code, options), ...liveFields(options) };
    return LiveProcess.open({ ...this.#live("code", options), start, last: "result" });
  }

  /** Sets the end to now + seconds; what exceeds the server's maximum is capped. Answers the sandbox with the end in force. */
  setTimeout(ttlSeconds: number, options: Abortable & { extendOnly?: boolean } = {}): Promise<SandboxInfo> {
    return this.#post("timeout", defined<wire.TimeoutRequest>({ ttl_seconds: ttlSeconds, extend_only: options.extendOnly }), options);
  }

  /** Counts as activity. */
  keepalive(options: Abortable = {}): Promise<SandboxInfo> {
    return this.#post("keepalive", undefined, options);
  }

  /** Freezes it: it uses no cpu, and its clocks stand still. */
  pause(options: Abortable = {}): Promise<SandboxInfo> {
    return this.#post("pause", undefined, options);
  }

  resume(options: Abortable & { ttlSeconds?: number } = {}): Promise<SandboxInfo> {
    return this.#post("resume", defined<wire.ResumeRequest>({ ttl_seconds: options.ttlSeconds }), options);
  }

  /** Changes metadata, as a whole, the idle timeout or what happens at a timeout. */
  update(changes: { metadata?: Record<string, string>; idleTimeout?: number | null; onTimeout?: "terminate" | "pause" }, options: Abortable = {}): Promise<SandboxInfo> {
    const json = defined<wire.SandboxUpdate>({ metadata: changes.metadata, idle_timeout_seconds: changes.idleTimeout, on_timeout: changes.onTimeout });
    return this.#take(this.#client.json({ method: "PATCH", path: this.#path, json, signal: options.signal, repeatable: true }));
  }

  async getNetwork(options: Abortable = {}): Promise<NetworkPolicy> {
    return policyOf(await this.#client.json({ method: "GET", path: `${this.#path}/network`, signal: options.signal }));
  }

  /** Replaces the rules at once; connections no longer allowed are cut. [] is no network. */
  async setNetwork(rules: NetworkRules, options: Abortable = {}): Promise<NetworkPolicy> {
    return policyOf(await this.#client.json({ method: "PUT", path: `${this.#path}/network`, json: rules, signal: options.signal }));
  }

  snapshot(options: SnapshotOptions = {}): Promise<SnapshotInfo> {
    const { signal, name, memory } = options;
    return this.#client.json({ method: "POST", path: `${this.#path}/snapshots`, json: defined({ name, memory }), signal, idempotent: true });
  }

  /** Copies the sandbox as it is. Each item is a sandbox, or says why it could not be made. */
  async fork(options: ForkOptions = {}): Promise<Fork[]> {
    const { count = 1, ttlSeconds, metadata, signal } = options;
    const answer = await this.#client.json<{ items: { sandbox?: SandboxInfo; error?: { reason: string; detail: string } }[] }>({
      method: "POST", path: `${this.#path}/fork`, json: defined({ count, ttl_seconds: ttlSeconds, metadata }), signal, idempotent: true,
    });
    return answer.items.map((item): Fork =>
      item.sandbox === undefined ? { error: item.error ?? { reason: "internal", detail: "" } } : { sandbox: new Sandbox(this.#client, item.sandbox) });
  }

  /** Takes the sandbox back to a snapshot of it. */
  rollback(snapshot: string, options: Abortable = {}): Promise<SandboxInfo> {
    return this.#post("rollback", { snapshot }, options);
  }

  /**
   * A URL for a port of the sandbox, which is exposed where it is not. Unless it is public, the URL carries its token, which a browser
   * exchanges for a cookie; a program sends it as header, see {@link Ports.expose}.
   */
  async getPortUrl(port: number, options: Abortable & { public?: boolean } = {}): Promise<string> {
    const { signal } = options;
    const known = options.public === undefined ? (await this.ports.list({ signal })).find((exposed) => exposed.port === port) : undefined;
    const exposed = known ?? (await this.ports.expose(port, options));
    if (exposed.token === null) return exposed.url;
    const url = new URL(exposed.url);
    url.searchParams.set("cay_port_token", exposed.token);
    return url.href;
  }

  /** Use over time: cpu, memory, disk, processes, network. */
  metrics(options: MetricsOptions = {}): Promise<Metrics> {
    return this.#observe.metrics(options);
  }

  /** What happened, oldest first; also of a sandbox that has ended. */
  events(options: HistoryOptions = {}): List<SandboxEvent> {
    return this.#observe.history("events", options);
  }

  /** As {@link events}, and what comes, until the sandbox ends. */
  followEvents(options: FollowOptions = {}): AsyncGenerator<SandboxEvent | Reset> {
    return this.#observe.follow("events", options);
  }

  /** What boot, package installation and the agent said. */
  logs(options: HistoryOptions = {}): List<LogEntry> {
    return this.#observe.history("logs", options);
  }

  followLogs(options: FollowOptions = {}): AsyncGenerator<LogEntry | Reset> {
    return this.#observe.follow("logs", options);
  }

  /** Ends the sandbox and frees what it used. Closing it again, or one that has ended, does nothing. */
  close(options: Abortable = {}): Promise<void> {
    this.#closing ??= this.#delete(options).catch((error: unknown) => {
      this.#closing = undefined;
      throw error;
    });
    return this.#closing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #delete(options: Abortable): Promise<void> {
    try {
      await this.#client.discard({ method: "DELETE", path: this.#path, signal: options.signal, timeout: 120 });
    } catch (error) {
      if (!(error instanceof CaySandboxError) || (error.status !== 404 && error.status !== 410)) throw error;
    }
  }

  #live(route: string, options: { transport?: "native" | "builtin"; signal?: AbortSignal | undefined; maxOutputBytes?: number }) {
    const { transport, signal, maxOutputBytes } = options;
    return { client: this.#client, path: `${this.#path}/${route}`, query: {}, last: "exit" as const, transport, signal, maxOutputBytes };
  }

  #post(operation: string, json: object | undefined, options: Abortable): Promise<SandboxInfo> {
    return this.#take(this.#client.json({ method: "POST", path: `${this.#path}/${operation}`, json, signal: options.signal, idempotent: true }));
  }

  async #take(answer: Promise<SandboxInfo>): Promise<SandboxInfo> {
    return (this.#info = await answer);
  }
}

function pathOf(id: string): string {
  return `/v1/sandboxes/${encodeURIComponent(id)}`;
}

function createRequest(options: CreateOptions): Record<string, unknown> {
  return defined({
    image: options.image, runtime: options.runtime, snapshot: options.snapshot, template: options.template,
    cpu: options.cpu, memory_mb: options.memoryMb, disk_gb: options.diskGb, pids: options.pids, gpu: options.gpu,
    ttl_seconds: options.ttlSeconds, idle_timeout_seconds: options.idleTimeout, on_timeout: options.onTimeout,
    paused_ttl_seconds: options.pausedTtlSeconds, auto_resume: options.autoResume, network: options.network,
    env: options.env, secrets: options.secrets, metadata: options.metadata, user: options.user, workdir: options.workdir,
    session_id: options.sessionId, session_shared: options.sessionShared,
    volumes: options.volumes?.map(({ name, path, readOnly }) => defined({ name, path, read_only: readOnly })),
    packages: options.packages, region: options.region, queue_timeout_seconds: options.queueTimeout,
  } satisfies { [K in keyof wire.SandboxRequest]-?: unknown });
}

async function untilReady(client: Client, info: SandboxInfo, deadline: number, signal: AbortSignal | undefined): Promise<SandboxInfo> {
  while (info.status === "CREATING") {
    const left = (deadline - Date.now()) / 1000;
    if (left <= 0) {
      throw new CaySandboxError(`sandbox ${info.id} was not READY in time; it is still being created`, { reason: "timeout", body: info });
    }
    const wait = Math.max(1, Math.min(createWait, Math.ceil(left)));
    info = await client.json<SandboxInfo>({
      method: "GET", path: pathOf(info.id), query: { wait_for: "READY", wait_seconds: wait }, signal, timeout: wait + 60,
    });
  }
  if (info.status === "READY") return info;
  throw new CaySandboxError(`sandbox ${info.id} is ${info.status}${info.statusReason ? ` (${info.statusReason})` : ""}`, {
    reason: info.statusReason ?? "conflict", body: info,
  });
}

function policyOf(answer: { allow: string[] | null; deny: string[] | null }): NetworkPolicy {
  return { allow: answer.allow ?? [], deny: answer.deny ?? [] };
}
