import { delay } from "./abort.js";
import { fromBase64 } from "./bytes.js";
import type { Client } from "./client.js";
import { CaySandboxError } from "./errors.js";
import { OutputDecoder, type StreamName } from "./output.js";
import { retryDelay } from "./retry.js";
import { type ServerEvent, eventObject, openEvents } from "./sse.js";
import type { JobStatus } from "./job.js";

interface FrameFields {
  /** A position: a stream that is opened after it has exactly what follows. */
  seq: number;
  /** When it happened. */
  ts: string;
}

/** The job was queued or began to run; `attempt` counts the sandboxes that it was given. */
export interface StatusFrame extends FrameFields {
  type: "status";
  data: JobStatus;
  attempt: number;
}

export interface OutputFrame extends FrameFields {
  type: "stdout" | "stderr" | "install";
  /** The text that is complete with this frame: a character split over two comes with the second. */
  data: string;
  /** The bytes of this frame. */
  bytes: Uint8Array;
}

/** Output that was too much to keep. */
export interface GapFrame extends FrameFields {
  type: "gap";
  stream: StreamName;
  bytes: number;
}

/** The last frame of a job whose program has ended: how. */
export interface ExitFrame extends FrameFields {
  type: "exit";
  data: JobStatus;
  exitCode: number | null;
  signal: string | null;
  timedOut: boolean;
  durationMs: number | null;
}

/** The last frame of a job whose program did not come to an end of its own: why. */
export interface ErrorFrame extends FrameFields {
  type: "error";
  data: JobStatus;
  reason: string;
  detail: string;
}

export type JobFrame = StatusFrame | OutputFrame | GapFrame | ExitFrame | ErrorFrame;

const maxReconnects = 20; // in a row, without a frame in between: some 45 s

/** @internal */
export interface JobStreamSource {
  client: Client;
  /** /v1/jobs/{id}/stream */
  path: string;
  seq: number;
  signal?: AbortSignal | undefined;
  maxReconnects?: number | undefined;
}

/** @internal Yields a job's frames until its last one, over as many connections as that takes. */
export async function* followJob(source: JobStreamSource): AsyncGenerator<JobFrame> {
  const { client, path, signal } = source;
  const state = new FrameState(source.seq);
  let begun = source.seq === 0;
  for (let failures = 0; ; ) {
    let failure: unknown;
    // After the last frame nothing comes. Whether a caller's seq is that of the last one shows from a position before it.
    const after = begun || failures === 0 ? state.seq : state.seq - 1;
    try {
      for await (const event of openEvents(client, { method: "GET", path, query: { seq: after || undefined }, signal })) {
        for (const frame of state.take(event)) {
          failures = 0;
          begun = true;
          yield frame;
        }
        if (state.ended) return;
      }
      failure = new CaySandboxError(`GET ${path}: the stream ended before the job did`, { reason: "stream_broken" });
    } catch (error) {
      failure = error;
    }
    const wait = retryDelay(failure, failures);
    if (wait === undefined || ++failures > (source.maxReconnects ?? maxReconnects)) throw failure;
    await delay(wait, signal);
  }
}

/** What is known of a stream over all of its connections. */
class FrameState {
  seq: number;
  /** The last frame has come. */
  ended = false;
  #attempt = 0;
  #decoder = new OutputDecoder();

  constructor(seq: number) {
    this.seq = seq;
  }

  *take(event: ServerEvent): Generator<JobFrame> {
    const members = eventObject(event);
    const seq = Number(members["seq"] ?? event.id);
    if (!Number.isSafeInteger(seq)) throw new CaySandboxError(`an event ${event.event} of a job's stream has no seq`, { reason: "invalid_response", body: members });
    this.ended = event.event === "exit" || event.event === "error";
    if (seq <= this.seq) return; // it has come already
    const fresh = seq - this.seq;
    this.seq = seq;
    const at: FrameFields = { seq, ts: String(members["ts"] ?? "") };
    const data = String(members["data"] ?? "");
    switch (event.event) {
      case "status": {
        const attempt = Number(members["attempt"] ?? 0);
        if (attempt !== this.#attempt) this.#decoder = new OutputDecoder(); // what was left of the last one's output is void
        this.#attempt = attempt;
        yield { type: "status", ...at, data: data as JobStatus, attempt };
        return;
      }
      case "stdout":
      case "stderr": {
        const bytes = bytesOf(members).slice(-fresh); // a frame may begin before what is new
        yield { type: event.event, ...at, data: this.#decoder.decode(event.event, bytes), bytes };
        return;
      }
      case "install": {
        const bytes = bytesOf(members);
        yield { type: "install", ...at, data: new TextDecoder().decode(bytes), bytes };
        return;
      }
      case "gap": {
        const stream: StreamName = members["stream"] === "stderr" ? "stderr" : "stdout";
        yield* this.#flush(stream, at);
        yield { type: "gap", ...at, stream, bytes: Number(members["bytes"] ?? 0) };
        return;
      }
      case "exit":
        yield* this.#flush("stdout", at);
        yield* this.#flush("stderr", at);
        yield {
          type: "exit", ...at, data: data as JobStatus, exitCode: (members["exit_code"] as number | null | undefined) ?? null,
          signal: (members["signal"] as string | null | undefined) ?? null, timedOut: members["timed_out"] === true,
          durationMs: (members["duration_ms"] as number | null | undefined) ?? null,
        };
        return;
      case "error":
        yield* this.#flush("stdout", at);
        yield* this.#flush("stderr", at);
        yield { type: "error", ...at, data: data as JobStatus, reason: String(members["reason"] ?? ""), detail: String(members["detail"] ?? "") };
        return;
      default: // of a newer server
    }
  }

  /** What is left of a character that will not be completed. */
  *#flush(stream: StreamName, at: FrameFields): Generator<JobFrame> {
    const data = this.#decoder.flush(stream);
    if (data !== "") yield { type: stream, ...at, data, bytes: new Uint8Array(0) };
  }
}

function bytesOf(members: Record<string, unknown>): Uint8Array {
  return typeof members["data_base64"] === "string" ? fromBase64(members["data_base64"]) : new TextEncoder().encode(String(members["data"] ?? ""));
}
