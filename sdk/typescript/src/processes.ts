import { type Content, fromBase64 } from "./bytes.js";
import type { Client } from "./client.js";
import { CaySandboxError } from "./errors.js";
import { type Command, execRequest, follow } from "./exec.js";
import type * as model from "./generated/model.js";
import type * as wire from "./generated/wire.js";
import { List, pageOf } from "./list.js";
import { defined } from "./names.js";
import type { Abortable, ExecEvent, ExecOptions, ProcessInfo } from "./types.js";

export interface StartOptions extends Omit<ExecOptions, "killOnDisconnect"> {
  /** Another way to name it while it runs. */
  name?: string;
  /** Run it on a terminal. */
  tty?: boolean;
  cols?: number;
  rows?: number;
  /** Keep stdin open for {@link Processes.sendStdin}. */
  stdinOpen?: boolean;
}

export interface LogsOptions extends Abortable {
  /** Where to begin; default 0. */
  offset?: number;
  /** Bytes of output at most; default 1 MiB. */
  limit?: number;
  /** "base64" asks for exact bytes, as stdoutBytes and stderrBytes. */
  encoding?: "utf8" | "base64";
}

/** A page of a process's output. `nextOffset` equals `size` once all of it so far was read. */
export type ProcessLogs = Omit<model.ProcessLogs, "stdout" | "stderr" | "stdoutBase64" | "stderrBase64"> & {
  stdout: string;
  stderr: string;
  stdoutBytes?: Uint8Array;
  stderrBytes?: Uint8Array;
};

/** What identifies a process: prc_…, a pid, a name, or what {@link Processes.start} answered. */
export type ProcessRef = string | number | { id: string | null; pid: number };

const longestWait = 60; // seconds of one request

/** The processes of a sandbox. They outlive the connection that started them. */
export class Processes {
  readonly #client: Client;
  readonly #sandbox: string;

  /** @internal */
  constructor(client: Client, sandbox: string) {
    this.#client = client;
    this.#sandbox = sandbox;
  }

  /** Starts a command and does not wait for it. It has no timeout unless one is given. One that cannot start has status failed. */
  start(command: Command, options: StartOptions = {}): Promise<ProcessInfo> {
    return this.#client.json({
      method: "POST",
      path: `${this.#sandbox}/processes`,
      json: {
        ...execRequest(command, options),
        ...defined<Partial<wire.ProcessRequest>>({ name: options.name, tty: options.tty, cols: options.cols, rows: options.rows, stdin_open: options.stdinOpen }),
      },
      signal: options.signal,
      idempotent: true,
      idempotencyKey: options.idempotencyKey,
    });
  }

  /** Those that clients started; with `all`, every process of the sandbox. */
  list(options: Abortable & { all?: boolean } = {}): List<ProcessInfo> {
    return new List(async (cursor) => pageOf(await this.#client.json<{ items: ProcessInfo[] | null; nextCursor?: string | null }>({
      method: "GET", path: `${this.#sandbox}/processes`, query: { all: options.all, cursor }, signal: options.signal,
    })));
  }

  get(process: ProcessRef, options: Abortable = {}): Promise<ProcessInfo> {
    return this.#client.json({ method: "GET", path: this.#path(process), signal: options.signal });
  }

  /** A page of the output so far. It never waits; {@link Processes.follow} does. */
  async logs(process: ProcessRef, options: LogsOptions = {}): Promise<ProcessLogs> {
    const page = await this.#client.json<ProcessLogs & { stdoutBase64?: string; stderrBase64?: string }>({
      method: "GET",
      path: `${this.#path(process)}/logs`,
      query: { offset: options.offset, limit: options.limit, encoding: options.encoding },
      signal: options.signal,
    });
    const { stdoutBase64, stderrBase64, ...logs } = page;
    if (stdoutBase64 === undefined && stderrBase64 === undefined) return logs;
    const stdoutBytes = fromBase64(stdoutBase64 ?? "");
    const stderrBytes = fromBase64(stderrBase64 ?? "");
    const text = (bytes: Uint8Array): string => new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
    return { ...logs, stdout: text(stdoutBytes), stderr: text(stderrBytes), stdoutBytes, stderrBytes };
  }

  /** Yields the process's events from an offset on until its exit, live. Leaving the loop closes the stream; the process runs on. */
  async *follow(process: ProcessRef, options: Abortable & { offset?: number } = {}): AsyncGenerator<ExecEvent> {
    for await (const event of follow({
      client: this.#client, sandbox: this.#sandbox, processId: refOf(process), offset: options.offset ?? 0, last: "exit", signal: options.signal,
    })) {
      if (event.type !== "result") yield event;
    }
  }

  /** Waits for the end. With a timeout in seconds, it answers the process as it is by then. */
  async wait(process: ProcessRef, options: Abortable & { timeout?: number } = {}): Promise<ProcessInfo> {
    const deadline = options.timeout === undefined ? Infinity : Date.now() + options.timeout * 1000;
    for (;;) {
      const left = Math.max(0, (deadline - Date.now()) / 1000);
      const seconds = Math.min(longestWait, left);
      const info = await this.#client.json<ProcessInfo>({
        method: "GET", path: `${this.#path(process)}/wait`, query: { timeout_seconds: seconds }, signal: options.signal, timeout: seconds + 30,
      });
      if (info.status !== "running" || left <= seconds) return info;
    }
  }

  async signal(process: ProcessRef, signal: string, options: Abortable & { tree?: boolean } = {}): Promise<void> {
    await this.#client.discard({
      method: "POST", path: `${this.#path(process)}/signal`, json: defined({ signal, tree: options.tree }), signal: options.signal, idempotent: true,
    });
  }

  /** Ends the process and everything it started. Ending one that has ended is no error. */
  async kill(process: ProcessRef, options: Abortable = {}): Promise<void> {
    try {
      await this.signal(process, "KILL", { tree: true, signal: options.signal });
    } catch (error) {
      if (!(error instanceof CaySandboxError) || error.status !== 409 || error.reason !== "conflict") throw error;
    }
  }

  /**
   * Writes to the stdin of a process started with `stdinOpen`. With an offset, bytes that arrived before are skipped, which makes it safe
   * to repeat. Answers the offset after it.
   */
  async sendStdin(process: ProcessRef, data: Content, options: Abortable & { offset?: number; close?: boolean } = {}): Promise<{ stdinOffset: number }> {
    return await this.#client.json({
      method: "POST",
      path: `${this.#path(process)}/stdin`,
      query: { offset: options.offset, close: options.close || undefined },
      body: data,
      signal: options.signal,
      timeout: null, // the process may read slowly
      repeatable: options.offset !== undefined,
    });
  }

  /** Ends the process's input. */
  async closeStdin(process: ProcessRef, options: Abortable = {}): Promise<void> {
    await this.sendStdin(process, new Uint8Array(0), { close: true, signal: options.signal });
  }

  async resize(process: ProcessRef, size: { cols: number; rows: number }, options: Abortable = {}): Promise<void> {
    await this.#client.discard({
      method: "POST", path: `${this.#path(process)}/resize`, json: { cols: size.cols, rows: size.rows }, signal: options.signal, idempotent: true,
    });
  }

  #path(process: ProcessRef): string {
    return `${this.#sandbox}/processes/${encodeURIComponent(refOf(process))}`;
  }
}

function refOf(process: ProcessRef): string {
  if (typeof process === "object") return process.id ?? String(process.pid);
  return String(process);
}
