import { delay } from "./abort.js";
import { fromBase64, toBase64 } from "./bytes.js";
import { type Client, type RequestOptions } from "./client.js";
import { CaySandboxError, invalidArgument } from "./errors.js";
import type * as wire from "./generated/wire.js";
import { camelize, defined } from "./names.js";
import { OutputDecoder, type StreamName } from "./output.js";
import { backoff, newIdempotencyKey, retryDelay } from "./retry.js";
import { type ServerEvent, errorEvent, eventObject, openEvents } from "./sse.js";
import type { ExecEvent, ExecExit, ExecOptions, ExecResult } from "./types.js";

export type Command = string | readonly string[];

type ExecFields = Omit<wire.ExecRequest, "command">;

/** The members that every way of running something shares. */
export function execFields(options: ExecOptions): ExecFields {
  const { stdin } = options;
  return defined<ExecFields>({
    stdin: typeof stdin === "string" ? stdin : undefined,
    stdin_base64: stdin instanceof Uint8Array ? toBase64(stdin) : undefined,
    timeout_seconds: options.timeout,
    env: options.env,
    cwd: options.cwd,
    user: options.user,
    max_output_bytes: options.maxOutputBytes,
    kill_on_disconnect: options.killOnDisconnect,
  });
}

export function execRequest(command: Command, options: ExecOptions): wire.ExecRequest {
  if (command.length === 0) throw invalidArgument("there is no command");
  return { command: typeof command === "string" ? command : [...command], ...execFields(options) };
}

/** The answer of an exec, asked for in base64, as text and as bytes. */
export function execResult(answer: Record<string, unknown>): ExecResult {
  const { stdoutBase64, stderrBase64, stdout, stderr, ...exit } = answer;
  const bytes = (base64: unknown, text: unknown): Uint8Array =>
    typeof base64 === "string" ? fromBase64(base64) : new TextEncoder().encode(typeof text === "string" ? text : "");
  const stdoutBytes = bytes(stdoutBase64, stdout);
  const stderrBytes = bytes(stderrBase64, stderr);
  const text = (data: Uint8Array): string => new TextDecoder("utf-8", { ignoreBOM: true }).decode(data);
  return { ...(exit as unknown as ExecExit), stdout: text(stdoutBytes), stderr: text(stderrBytes), stdoutBytes, stderrBytes };
}

/**
 * Sends an exec or code request and reads its answer. A runtime whose fetch gives up waiting for the answer is no reason to give up: the
 * request is sent again with its key, and attaches to the same process.
 */
export async function collect(client: Client, path: string, body: object, options: ExecOptions): Promise<Record<string, unknown>> {
  const request: RequestOptions = {
    method: "POST",
    path,
    json: { ...body, encoding: "base64" },
    signal: options.signal,
    timeout: null,
    idempotencyKey: options.idempotencyKey ?? (await newIdempotencyKey()),
  };
  for (;;) {
    try {
      return await client.json<Record<string, unknown>>(request);
    } catch (error) {
      if (!gaveUpWaiting(error)) throw error;
    }
  }
}

function gaveUpWaiting(error: unknown): boolean {
  for (let depth = 0; depth < 5 && error instanceof Error; depth++, error = error.cause) {
    if ((error as { code?: unknown }).code === "UND_ERR_HEADERS_TIMEOUT") return true;
  }
  return false;
}

/** Where a stream of a process begins: with a request that starts it, or at an offset of one that runs. */
export interface StreamSource {
  client: Client;
  /** /v1/sandboxes/{id} */
  sandbox: string;
  start?: RequestOptions;
  processId?: string;
  offset?: number;
  /** The event that ends the stream. */
  last: "exit" | "result";
  signal?: AbortSignal | undefined;
  maxReconnects?: number | undefined;
}

/** An event with its fields as they came, but for decoded output. */
export type StreamEvent = ExecEvent | { type: "result"; members: Record<string, unknown> };

const maxReconnects = 8; // in a row, without an event in between

/**
 * Yields a process's events until its last one. A connection that breaks is attached again by offset, without loss or doubling; a
 * stream that cannot be mended ends with the error that broke it, never as if the process had ended.
 */
export async function* follow(source: StreamSource): AsyncGenerator<StreamEvent> {
  const state = new StreamState(source.processId, source.offset ?? 0);
  for (let failures = 0; ; ) {
    let failure: unknown;
    try {
      for await (const event of openEvents(source.client, requestOf(source, state))) {
        for (const out of state.take(event)) {
          failures = 0;
          yield out;
          if (out.type === source.last) return;
        }
      }
      failure = new CaySandboxError(`the stream of ${state.describe()} ended before the process did`, { reason: "stream_broken" });
    } catch (error) {
      failure = error;
    }
    // Before the process is known, only a stream that had begun is worth another request: its key makes it the same process.
    const known = state.processId !== undefined || (failure instanceof CaySandboxError && failure.reason === "stream_broken");
    const wait = known && mendable(failure) ? (retryDelay(failure, failures) ?? backoff(failures)) : undefined;
    if (wait === undefined || ++failures > (source.maxReconnects ?? maxReconnects)) throw failure;
    await delay(wait, source.signal);
  }
}

function requestOf(source: StreamSource, state: StreamState): RequestOptions {
  if (state.processId === undefined) return source.start as RequestOptions;
  return {
    method: "GET",
    path: `${source.sandbox}/processes/${encodeURIComponent(state.processId)}/stream`,
    query: { offset: state.offset, encoding: "base64" },
    signal: source.signal,
  };
}

function mendable(error: unknown): boolean {
  if (!(error instanceof CaySandboxError)) return false;
  if (error.status === 0) return ["stream_broken", "connection_failed", "slow_consumer", "unavailable", "rate_limited"].includes(error.reason);
  return retryDelay(error, 0) !== undefined;
}

/** What is known of a process while its stream is read, over all of its connections. */
class StreamState {
  processId: string | undefined;
  offset: number;
  #started = false;
  #exited = false;
  readonly #decoder = new OutputDecoder();

  constructor(processId: string | undefined, offset: number) {
    this.processId = processId;
    this.offset = offset;
  }

  describe(): string {
    return this.processId === undefined ? "a command" : `process ${this.processId}`;
  }

  *take(event: ServerEvent): Generator<StreamEvent> {
    switch (event.event) {
      case "start": {
        const members = eventObject(event);
        if (typeof members["process_id"] === "string") this.processId = members["process_id"];
        if (typeof members["offset"] === "number") this.offset = members["offset"];
        if (this.#started) return;
        this.#started = true;
        yield { type: "start", processId: this.processId ?? "", offset: this.offset };
        return;
      }
      case "stdout":
      case "stderr":
        yield this.#output(event.event, event);
        return;
      case "gap": {
        const members = eventObject(event);
        const stream: StreamName = members["stream"] === "stderr" ? "stderr" : "stdout";
        yield* this.#flush(stream);
        const gap = { offset: Number(members["offset"] ?? this.offset), bytes: Number(members["bytes"] ?? 0) };
        this.offset = offsetOf(event) ?? gap.offset + gap.bytes;
        yield { type: "gap", stream, ...gap };
        return;
      }
      case "exit":
        if (this.#exited) return; // seen before the connection broke
        this.#exited = true;
        yield* this.#flush("stdout");
        yield* this.#flush("stderr");
        yield { type: "exit", ...camelize<ExecExit>(eventObject(event)) };
        return;
      case "result":
        yield { type: "result", members: eventObject(event) };
        return;
      case "error":
        throw errorEvent(eventObject(event), `the stream of ${this.describe()}`);
      default: // of a newer server
    }
  }

  #output(stream: StreamName, event: ServerEvent): StreamEvent {
    const members = eventObject(event);
    const bytes = typeof members["data_base64"] === "string" ? fromBase64(members["data_base64"]) : new TextEncoder().encode(String(members["data"] ?? ""));
    this.offset = offsetOf(event) ?? this.offset + bytes.length;
    return { type: stream, data: this.#decoder.decode(stream, bytes), bytes, offset: this.offset };
  }

  *#flush(stream: StreamName): Generator<StreamEvent> {
    const data = this.#decoder.flush(stream);
    if (data !== "") yield { type: stream, data, bytes: new Uint8Array(0), offset: this.offset };
  }
}

function offsetOf(event: ServerEvent): number | undefined {
  return event.id !== undefined && /^\d+$/.test(event.id) ? Number(event.id) : undefined;
}

/** Starts something that streams. */
export async function startRequest(path: string, body: object, options: ExecOptions): Promise<RequestOptions> {
  return {
    method: "POST",
    path,
    json: { ...body, encoding: "base64" },
    signal: options.signal,
    idempotencyKey: options.idempotencyKey ?? (await newIdempotencyKey()),
  };
}
