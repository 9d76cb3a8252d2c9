// What the SDK's methods take and answer. Durations are in seconds, sizes in what their name says.
import type * as model from "./generated/model.js";
import type { ListFields } from "./list.js";

export type SandboxInfo = model.Sandbox;
export type ServerInfo = model.Info;
export type Runtime = model.Runtime;
export type FileEntry = model.File;
export type Ticket = model.Ticket;
export type Gap = model.Gap;
export type ProcessInfo = model.Process;
export type SandboxStatus = SandboxInfo["status"];

/** Which hosts a sandbox may reach: what it may, or with what it may not. */
export type NetworkRules = string[] | { allow?: string[]; deny?: string[] };

/** The rules in force. */
export interface NetworkPolicy {
  allow: string[];
  deny: string[];
}

export interface Abortable {
  /** Ends the operation with an error named AbortError. */
  signal?: AbortSignal | undefined;
}

/** What a sandbox is made of. Exactly one of image, runtime, snapshot and template; none: the default runtime. */
export interface CreateOptions extends Abortable {
  /** An OCI reference, or "host". */
  image?: string;
  /** A runtime by name, see {@link ServerInfo}. */
  runtime?: string;
  snapshot?: string;
  template?: string;
  /** Cores; may have decimals. */
  cpu?: number;
  memoryMb?: number;
  diskGb?: number;
  /** Processes and threads at once. */
  pids?: number;
  gpu?: number;
  /** From READY to the end. */
  ttlSeconds?: number;
  /** Seconds without activity until the sandbox ends or pauses; 0 or null: never. */
  idleTimeout?: number | null;
  /** What the end of the TTL or of the idle timeout does. */
  onTimeout?: "terminate" | "pause";
  pausedTtlSeconds?: number;
  /** Let exec, files and port traffic resume it. */
  autoResume?: boolean;
  network?: NetworkRules;
  env?: Record<string, string>;
  secrets?: string[];
  metadata?: Record<string, string>;
  user?: string;
  workdir?: string;
  /** A session's files, at /session. */
  sessionId?: string;
  /** Use the session beside others that ask for it so as well. */
  sessionShared?: boolean;
  volumes?: { name: string; path: string; readOnly?: boolean }[];
  packages?: unknown[];
  region?: string;
  /** Seconds that the request may wait for capacity. */
  queueTimeout?: number;
  /** Seconds to wait for READY before giving up; default 300. The sandbox lives on then. */
  readyTimeout?: number;
  /** Makes a repeated create answer with the first one's sandbox; made where it is missing. */
  idempotencyKey?: string;
}

export interface ListOptions extends ListFields {
  /** "active" stands for CREATING, READY and PAUSED. */
  status?: SandboxStatus | "active" | (SandboxStatus | "active")[];
  /** Those that use this session. */
  sessionId?: string;
  /** Also those that the platform made for jobs and for the files of sessions. */
  managed?: boolean;
}

/** How a command is run. */
export interface ExecOptions extends Abortable {
  /** All of the input; without it the command reads end of file at once. */
  stdin?: string | Uint8Array;
  /** Seconds until the whole tree is killed; default 60, null: none. */
  timeout?: number | null;
  env?: Record<string, string>;
  cwd?: string;
  /** A name or uid[:gid] of the sandbox. */
  user?: string;
  /** Bytes kept of each stream, head and tail; default 10 MiB. Streams deliver everything. */
  maxOutputBytes?: number;
  /** End the command when the connection that started it ends. Otherwise it runs on, even after an abort. */
  killOnDisconnect?: boolean;
  /** Makes a repeated request attach to the first one's process; made where it is missing. */
  idempotencyKey?: string;
}

/** How a process ended. 128+N for signal N, 127 not found, 126 not executable. */
export type ExecExit = Omit<model.ExecAnswer, "stdout" | "stderr" | "stdoutBase64" | "stderrBase64">;

/** A command that has ended. One that failed is a result and no error: see `ok`. */
export interface ExecResult extends ExecExit {
  /** As text; bytes that are no UTF-8 are U+FFFD. */
  stdout: string;
  stderr: string;
  /** The same, byte for byte. */
  stdoutBytes: Uint8Array;
  stderrBytes: Uint8Array;
}

export interface StartEvent {
  type: "start";
  processId: string;
  offset: number;
}

export interface OutputEvent {
  type: "stdout" | "stderr";
  /** The text that is complete with this chunk: a character split over two chunks comes with the second. */
  data: string;
  /** The chunk itself. */
  bytes: Uint8Array;
  /** Bytes of stdout and stderr together up to the end of this chunk: where one attaches again. */
  offset: number;
}

/** Output that is missing: not kept by the server, or missed by a reader that lagged behind. */
export interface GapEvent {
  type: "gap";
  stream: "stdout" | "stderr";
  offset: number;
  bytes: number;
}

export interface ExitEvent extends ExecExit {
  type: "exit";
}

export type ExecEvent = StartEvent | OutputEvent | GapEvent | ExitEvent;

/** A value that code showed, by MIME type: text as strings, binary types in base64, JSON types as values. */
export interface RichResult {
  /** The value of the last expression, rather than one that was displayed on the way. */
  isMain: boolean;
  "text/plain"?: string;
  "text/html"?: string;
  "image/png"?: string;
  "application/json"?: unknown;
  "application/vnd.cay.table+json"?: { columns: unknown[]; rows: unknown[][]; total_rows: number };
  [mime: string]: unknown;
}

export type ChangedFile = model.ProgramFile;

/** A file that code wrote below /output: its content, or where to get it for an hour. */
export type OutputFile = Omit<model.Output, "dataBase64"> & { data?: Uint8Array };

/** What code left behind. */
export type CodeOutcome =
  & Pick<model.CodeAnswer, "language" | "contextId" | "filesChanged" | "filesTruncated" | "resultsTruncated" | "executionCount" | "contextLost">
  & { outputs: OutputFile[]; results: RichResult[]; error: model.CodeError | null };

export type CodeResult = ExecResult & CodeOutcome;

export type CodeResultEvent = CodeOutcome & { type: "result" };

export type CodeEvent = ExecEvent | CodeResultEvent;

export interface CodeOptions extends ExecOptions {
  /** Default: the context's, else the sandbox's runtime, else python. */
  language?: string;
  /** Run where earlier code left its state; see `sandbox.contexts`. */
  contextId?: string;
}

/** The state of a sandbox that others can be created from. */
export interface SnapshotInfo {
  id: string;
  name: string | null;
  createdAt: string;
  [member: string]: unknown;
}

export interface SnapshotOptions extends Abortable {
  name?: string;
  /** Also what its processes hold in memory. */
  memory?: boolean;
}

export interface ForkOptions extends Abortable {
  /** How many; default 1. */
  count?: number;
  ttlSeconds?: number;
  metadata?: Record<string, string>;
}
