import { type Content, pieces } from "./bytes.js";
import type { Client, Query } from "./client.js";
import { codeOutcome } from "./code.js";
import { CaySandboxError, abortError, invalidArgument, throwIfAborted } from "./errors.js";
import { camelize } from "./names.js";
import { HeadAndTail, OutputDecoder, type StreamName } from "./output.js";
import { EventQueue } from "./queue.js";
import type { Abortable, CodeEvent, CodeOutcome, ExecExit, ExecOptions, ExecResult } from "./types.js";
import { openBuiltin } from "./websocket/builtin.js";
import { hasNative, openNative } from "./websocket/native.js";
import type { Closed, Socket } from "./websocket/socket.js";

/**
 * Which WebSocket carries a live process: "native" is the runtime's, authorized by a ticket; "builtin" the SDK's own over node:http(s), which
 * sends the key in a header and holds the server back when the reader is slow. Default: native where there is one, else builtin.
 */
export type Transport = "native" | "builtin";

export interface LiveProcessOptions extends Omit<ExecOptions, "stdin" | "idempotencyKey"> {
  /** Run on a terminal: all output is stdout, and `closeStdin` is Ctrl-D. */
  tty?: boolean;
  cols?: number;
  rows?: number;
  transport?: Transport;
}

export interface TerminalOptions extends Abortable {
  cols?: number;
  rows?: number;
  user?: string;
  cwd?: string;
  transport?: Transport;
}

export interface AttachOptions extends Abortable {
  /** Where in the output to begin; default 0. */
  offset?: number;
  transport?: Transport;
}

const protocol = "cay.exec.v1";
const stdinPiece = 256 * 1024; // bytes of one message; the server takes up to 1 MiB
const defaultKept = 10 * 1024 * 1024;
const goodbye = 2_000; // milliseconds for an exit after an abort's kill, and for a close after the exit

/** @internal */
export interface LivePlan {
  client: Client;
  path: string;
  query: Query;
  start?: Record<string, unknown>;
  /** The message that ends the connection. */
  last: "exit" | "result";
  offset?: number;
  maxOutputBytes?: number | undefined;
  transport?: Transport | undefined;
  signal?: AbortSignal | undefined;
}

/**
 * A process with live input and output over a WebSocket. Loop over it for its events; leaving the loop closes the connection. `wait`
 * answers how it ended, with the head and the tail of the output. The connection is one: when it ends before the command did, that is an
 * error with reason `websocket_closed`, and `sandbox.attach(processId, { offset })` takes the process up again.
 */
export class LiveProcess<E extends CodeEvent = CodeEvent, R extends ExecResult = ExecResult> implements AsyncIterable<E> {
  readonly #plan: LivePlan;
  #socket!: Socket; // set by open before anything else can happen
  #processId = "";
  #stdinOffset = 0;
  #offset: number;
  #exit: ExecExit | undefined;
  #outcome: CodeOutcome | undefined;
  #serverError: Record<string, unknown> | undefined;
  #ended = false;
  #exitTimer: ReturnType<typeof setTimeout> | undefined;
  #lingers = false; // aborted: the connection stays until the kill has worked
  readonly #decoder = new OutputDecoder();
  readonly #kept: Record<StreamName, HeadAndTail>;
  readonly #lost = { stdout: false, stderr: false };
  readonly #queue: EventQueue;
  readonly #started: Promise<void>;
  #settleStarted!: { resolve(): void; reject(error: unknown): void };
  readonly #result: Promise<R>;
  #settleResult!: { resolve(result: R): void; reject(error: unknown): void };
  #input: Promise<void> = Promise.resolve(); // orders what is sent
  readonly #onAbort = (): void => this.#abort();

  private constructor(plan: LivePlan) {
    this.#plan = plan;
    this.#offset = plan.offset ?? 0;
    const bound = plan.maxOutputBytes ?? defaultKept;
    this.#kept = { stdout: new HeadAndTail(bound), stderr: new HeadAndTail(bound) };
    this.#started = new Promise((resolve, reject) => (this.#settleStarted = { resolve, reject }));
    this.#result = new Promise((resolve, reject) => (this.#settleResult = { resolve, reject }));
    this.#result.catch(() => undefined); // who does not wait is not interrupted by what he does not await
    this.#queue = new EventQueue({
      full: () => this.#socket.pause(),
      drained: () => this.#socket.resume(),
      overflow: () => this.#fail(new CaySandboxError(
        `process ${this.#processId}: its output was not read for too long; it runs on. Read faster, or use transport: "builtin", which holds it back`,
        { reason: "slow_consumer" },
      )),
    });
  }

  /** @internal */
  static async open<E extends CodeEvent, R extends ExecResult>(plan: LivePlan): Promise<LiveProcess<E, R>> {
    throwIfAborted(plan.signal);
    const live = new LiveProcess<E, R>(plan);
    const open = (plan.transport ?? (hasNative() ? "native" : "builtin")) === "native" ? openNative : openBuiltin;
    live.#socket = await open(
      { client: plan.client, path: plan.path, query: plan.query, protocol, ping: '{"type":"ping"}', signal: plan.signal },
      { message: (data) => live.#message(data), closed: (how) => live.#closed(how) },
    );
    plan.signal?.addEventListener("abort", live.#onAbort, { once: true });
    if (plan.start !== undefined) await live.#control({ type: "start", ...plan.start });
    if (plan.signal?.aborted) live.#abort();
    await live.#started;
    return live;
  }

  get processId(): string {
    return this.#processId;
  }

  /** Bytes of stdout and stderr together that have arrived: where to attach again. */
  get offset(): number {
    return this.#offset;
  }

  /** Bytes of stdin that the process had before this connection. */
  get stdinOffset(): number {
    return this.#stdinOffset;
  }

  [Symbol.asyncIterator](): AsyncIterator<E, undefined> {
    const events = this.#queue.iterate();
    return {
      next: () => events.next() as Promise<IteratorResult<E, undefined>>,
      return: async () => {
        this.close(); // first: a read may be pending
        await events.return(undefined);
        return { done: true, value: undefined };
      },
    };
  }

  /** Sends input; resolves once it is on its way. */
  sendStdin(data: Content): Promise<void> {
    return this.#enqueue(async () => {
      for await (const piece of pieces(data)) {
        for (let at = 0; at < piece.length; at += stdinPiece) {
          if (this.#ended) throw this.#over();
          await this.#socket.send(piece.subarray(at, at + stdinPiece));
        }
      }
    });
  }

  /** Ends the input, after what was sent. */
  closeStdin(): Promise<void> {
    return this.#enqueue(() => this.#control({ type: "close_stdin" }));
  }

  resize(cols: number, rows: number): Promise<void> {
    return this.#control({ type: "resize", cols, rows });
  }

  /** Sends a signal, INT or TERM or …, with `tree` also to everything that the process started. */
  signal(signal: string, options: { tree?: boolean } = {}): Promise<void> {
    return this.#control({ type: "signal", signal, ...(options.tree === undefined ? {} : { tree: options.tree }) });
  }

  /** Waits for the end. Without a loop over it, its output is read on and only its head and tail are kept. */
  wait(): Promise<R> {
    this.#queue.discardWhenUnread();
    return this.#result;
  }

  /** Leaves. A terminal is hung up; another process runs on unless it was started with `killOnDisconnect`. */
  close(): void {
    if (this.#ended) return;
    this.#fail(new CaySandboxError(`the connection to process ${this.#processId} was closed`, { reason: "websocket_closed" }));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  #enqueue(send: () => Promise<void>): Promise<void> {
    const sent = this.#input.then(send);
    this.#input = sent.catch(() => undefined);
    return sent;
  }

  async #control(message: Record<string, unknown>): Promise<void> {
    if (this.#ended) throw this.#over();
    await this.#socket.send(JSON.stringify(message));
  }

  #over(): CaySandboxError {
    return new CaySandboxError(`the connection to process ${this.#processId} has ended`, { reason: "websocket_closed" });
  }

  #message(data: string | Uint8Array): void {
    if (this.#ended) {
      if (this.#lingers && typeof data === "string" && data.includes('"exit"')) this.#socket.close(1000, "");
      return;
    }
    try {
      if (typeof data === "string") this.#text(data);
      else this.#output(data);
    } catch (error) {
      this.#fail(error instanceof CaySandboxError ? error : new CaySandboxError("the server broke the protocol of live processes", { reason: "invalid_response", cause: error }));
    }
  }

  #output(data: Uint8Array): void {
    const stream: StreamName | undefined = data[0] === 1 ? "stdout" : data[0] === 2 ? "stderr" : undefined;
    if (stream === undefined) return; // a channel of a newer server
    const bytes = data.subarray(1);
    this.#offset += bytes.length;
    this.#kept[stream].push(bytes);
    this.#queue.push({ type: stream, data: this.#decoder.decode(stream, bytes), bytes, offset: this.#offset });
  }

  #text(data: string): void {
    const message = JSON.parse(data) as Record<string, unknown>;
    switch (message["type"]) {
      case "started":
        this.#processId = String(message["process_id"] ?? "");
        this.#stdinOffset = Number(message["stdin_offset"] ?? 0);
        if (typeof message["offset"] === "number") this.#offset = message["offset"];
        this.#queue.push({ type: "start", processId: this.#processId, offset: this.#offset });
        this.#settleStarted.resolve();
        return;
      case "gap": {
        const stream: StreamName = message["stream"] === "stderr" ? "stderr" : "stdout";
        const bytes = Number(message["bytes"] ?? 0);
        this.#flush(stream);
        this.#queue.push({ type: "gap", stream, offset: Number(message["offset"] ?? this.#offset), bytes });
        this.#offset += bytes;
        this.#kept[stream].skip(bytes);
        this.#lost[stream] = true;
        return;
      }
      case "exit": {
        const { type: _, ...members } = message;
        this.#exit = camelize<ExecExit>(members);
        this.#flush("stdout");
        this.#flush("stderr");
        this.#queue.push({ type: "exit", ...this.#exit });
        if (this.#plan.last === "exit") this.#finish();
        return;
      }
      case "result": {
        const { type: _, ...members } = message;
        this.#outcome = codeOutcome(camelize(members));
        this.#queue.push({ type: "result", ...this.#outcome });
        if (this.#plan.last === "result") this.#finish();
        return;
      }
      case "error":
        this.#serverError = message; // the close that follows has the status
        this.#exitTimer = setTimeout(() => this.#closed({ code: 1006, reason: "" }), goodbye);
        return;
      default: // pong, and what a newer server says
    }
  }

  #flush(stream: StreamName): void {
    const data = this.#decoder.flush(stream);
    if (data !== "") this.#queue.push({ type: stream, data, bytes: new Uint8Array(0), offset: this.#offset });
  }

  /** All has come: the server closes now, and the client does if it does not. */
  #finish(): void {
    const exit = this.#exit as ExecExit;
    const stdout = this.#kept.stdout.take();
    const stderr = this.#kept.stderr.take();
    const text = (bytes: Uint8Array): string => new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
    const result: ExecResult = {
      ...exit,
      truncated: { stdout: exit.truncated?.stdout || stdout.missing > 0 || this.#lost.stdout, stderr: exit.truncated?.stderr || stderr.missing > 0 || this.#lost.stderr },
      stdout: text(stdout.bytes), stderr: text(stderr.bytes), stdoutBytes: stdout.bytes, stderrBytes: stderr.bytes,
    };
    this.#end();
    this.#queue.end();
    this.#settleResult.resolve((this.#outcome === undefined ? result : { ...result, ...this.#outcome }) as R);
  }

  #closed(how: Closed): void {
    if (this.#ended) return;
    const { processId } = this;
    const about = processId === "" ? "a live process" : `process ${processId}`;
    if (this.#serverError !== undefined) {
      const { type: _, ...body } = this.#serverError;
      const status = how.code >= 4400 && how.code < 4600 ? how.code - 4000 : 0;
      this.#fail(new CaySandboxError(`${about}: ${String(body["detail"] ?? body["reason"] ?? "the server reported an error")}`, { status, reason: "exec_error", body }));
      return;
    }
    const why = how.reason || (how.error instanceof Error ? how.error.message : "") || `code ${how.code}`;
    this.#fail(new CaySandboxError(`${about}: the connection ended before the command did (${why})`, {
      status: how.code >= 4400 && how.code < 4600 ? how.code - 4000 : 0,
      reason: "websocket_closed",
      body: { code: how.code, reason: how.reason, ...(processId === "" ? {} : { processId, offset: this.#offset }) },
      cause: how.error,
    }));
  }

  /** Kills the command. The callers don't wait for its end; the connection does, for a moment. */
  #abort(): void {
    if (this.#ended) return;
    this.#lingers = true;
    void this.#socket.send('{"type":"signal","signal":"KILL","tree":true}');
    this.#fail(abortError(this.#plan.signal as AbortSignal));
    this.#socket.resume();
  }

  #fail(error: CaySandboxError): void {
    if (this.#ended) return;
    this.#end();
    this.#queue.fail(error);
    this.#settleStarted.reject(error);
    this.#settleResult.reject(error);
  }

  #end(): void {
    this.#ended = true;
    clearTimeout(this.#exitTimer);
    this.#plan.signal?.removeEventListener("abort", this.#onAbort);
    if (this.#lingers) setTimeout(() => this.#socket.close(1000, ""), goodbye);
    else this.#socket.close(1000, "");
  }
}

/** Refuses what only another kind of request can do. */
export function liveFields(options: LiveProcessOptions): Record<string, unknown> {
  if ((options as ExecOptions).stdin !== undefined) throw invalidArgument("a live process's input goes through sendStdin");
  const { tty, cols, rows } = options;
  return { ...(tty === undefined ? {} : { tty }), ...(cols === undefined ? {} : { cols }), ...(rows === undefined ? {} : { rows }) };
}
