import { Client, type ClientOptions } from "./client.js";
import type * as model from "./generated/model.js";
import { List, type PastFields, joined, pageOf, pastQuery } from "./list.js";
import type { Abortable } from "./types.js";

/** What a record tells of; a newer server may have further kinds. */
export type RecordKind = "sandbox" | "job" | "session" | "exec" | "code" | "process" | "terminal" | (string & {});

/**
 * What ran, or was there, and how it ended. Environment, input and output are never in it. `durationMs` is in milliseconds, `cpuSeconds` in
 * seconds of one core, `peakMemoryMb` in MiB.
 */
export type HistoryRecord = Omit<model.Record, "kind"> & { kind: RecordKind };

export interface ListHistoryOptions extends PastFields {
  kind?: RecordKind | RecordKind[];
  /** What ran there, and the sandbox itself once it has ended. */
  sandboxId?: string;
  sessionId?: string;
  /** What this key asked for. */
  keyId?: string;
  /** How it ended, such as `timeout` or `oom`: of a process its reason, of a job its status, of a sandbox or session its reason. */
  outcome?: string | string[];
  /** Only what ended as one would wish, or only what did not. */
  ok?: boolean;
  /** Part of the command or the name, without regard to ASCII case; at most 200 bytes. */
  text?: string;
}

/**
 * What is over: every command, program, background process and terminal, every job, session and sandbox. Records of processes come about a
 * second after their end, all others with it. The server keeps them for 30 days, unless it is set otherwise.
 */
export const History = {
  /** Records of the key's project, newest end first. Await the list, or loop over it page by page. What the server cannot read is a 400. */
  list(options: ListHistoryOptions & ClientOptions = {}): List<HistoryRecord> {
    const client = new Client(options);
    const { kind, sandboxId, sessionId, keyId, outcome, ok, text, signal } = options;
    return new List(async (cursor) => pageOf(await client.json<{ items: HistoryRecord[] | null; nextCursor: string | null }>({
      method: "GET", path: "/v1/history", signal,
      query: {
        ...pastQuery(options, cursor), kind: joined(kind), sandbox_id: sandboxId, session_id: sessionId, key_id: keyId, outcome: joined(outcome), ok, text,
      },
    })));
  },

  /** The record of a process, job, session or sandbox, by its id. What has not ended yet, or never was, is a 404 `not_found`. */
  async get(id: string, options: ClientOptions & Abortable = {}): Promise<HistoryRecord> {
    return await new Client(options).json({ method: "GET", path: `/v1/history/${encodeURIComponent(id)}`, signal: options.signal });
  },
};
