// Generated from openapi.json by scripts/generate.mjs. Do not edit.

export interface Amounts {
  /** Promised cores × running seconds */
  allocated_cpu_seconds: number;
  /** Promised disk × running and paused seconds */
  allocated_disk_gb_seconds: number;
  /** Promised memory × running and paused seconds */
  allocated_memory_mb_seconds: number;
  /** Really used */
  cpu_seconds: number;
  egress_bytes: number;
  /** Really used */
  memory_mb_seconds: number;
  paused_seconds: number;
  running_seconds: number;
  /** How many different ones */
  sandboxes: number;
}

export interface ArchiveAnswer {
  bytes: number;
  directories: number;
  /** Symlinks and hard links count as files */
  files: number;
  /** Devices, FIFOs and sockets */
  skipped: number;
}

export interface AuditEntry {
  /** The operation's id in this document, such as create-sandbox; of the simple door that which it is another form of; unmatched: refused before that was known */
  action: string;
  /** RFC 3339, UTC, milliseconds */
  at: string | null;
  /** Digits; grows with every entry */
  id: string;
  /** null: of nobody known */
  key_id: string | null;
  /** The id that the URL names, or that was made; null: none */
  object: string | null;
  /** null: of nobody known */
  project_id: string | null;
  /** Of the problem; null: it was none */
  reason: string | null;
  /** Of the connection: behind a proxy the proxy's */
  remote_addr: string;
  request_id: string;
  /** Of the answer */
  status: number;
  /** null: it was not traced */
  trace_id: string | null;
  /** At most 256 bytes */
  user_agent: string;
}

export interface AuditEntryList {
  items: AuditEntry[];
  /** Give it as cursor for what follows; null at the end */
  next_cursor: string | null;
}

export interface ChmodRequest {
  /** Octal */
  mode?: string | null;
  path: string;
  /** With all that is below; symlinks there stay as they are */
  recursive?: boolean;
  /** Whose the file becomes, with its group: a name or uid[:gid]. In the query, user is whose access counts */
  user?: string | null;
}

export interface CodeAnswer {
  /** null without a context */
  context_id: string | null;
  /** The state of the context is gone */
  context_lost: boolean;
  /** Why it did not start */
  detail?: string;
  duration_ms: number;
  /** In a context: the exception that ended the program; else null */
  error: CodeError | null;
  /** Of the context; 0 without one */
  execution_count: number;
  /** 128+N for signal N; 127 not found, 126 not executable */
  exit_code: number;
  /** Below /workspace, /output and the user's home; at most 1000 */
  files_changed: ProgramFile[];
  /** More changed than is told */
  files_truncated: boolean;
  /** Ended by the platform or a client */
  killed: boolean;
  language: string;
  /** Bytes that are no UTF-8 became U+FFFD */
  lossy: PerStream;
  /** Exit code 0 and not timed out */
  ok: boolean;
  oom: boolean;
  /** The files that were created or written below /output, in order */
  outputs: Output[];
  process_id: string;
  reason: "exited" | "signaled" | "timeout" | "oom" | "killed" | "start_failed" | "sandbox_ended";
  /** In a context: what the program displayed and the value of its last expression, each by its media types: text as strings, JSON types as JSON, everything else in base64; is_main marks the value of the last expression. A table has application/vnd.cay.table+json {columns, rows, total_rows} as well */
  results: ({ [key: string]: unknown })[];
  /** Results were left out, being too large, or not what they say */
  results_truncated: boolean;
  /** Without SIG; null when it exited by itself */
  signal: string | null;
  /** With encoding utf8 */
  stderr?: string;
  /** With encoding base64 */
  stderr_base64?: string;
  /** The first run of stderr that is missing */
  stderr_gap?: Gap;
  /** True size in bytes, whatever was kept */
  stderr_size: number;
  /** With encoding utf8 */
  stdout?: string;
  /** With encoding base64 */
  stdout_base64?: string;
  /** The first run of stdout that is missing */
  stdout_gap?: Gap;
  /** True size in bytes, whatever was kept */
  stdout_size: number;
  timed_out: boolean;
  /** Less than the process wrote was kept or delivered */
  truncated: PerStream;
}

export interface CodeContext {
  /** RFC 3339, UTC, milliseconds */
  created_at: string | null;
  cwd: string;
  execution_count: number;
  /** ctx_… */
  id: string;
  language: string;
  /** RFC 3339, UTC, milliseconds */
  last_used_at: string | null;
  status: "idle" | "busy";
  user: string;
}

export interface CodeContextList {
  items: CodeContext[];
  /** Give it as cursor for what follows; null at the end */
  next_cursor: string | null;
}

export interface CodeError {
  name: string;
  traceback: string;
  value: string;
}

export interface CodeOutcome {
  /** null without a context */
  context_id: string | null;
  /** The state of the context is gone */
  context_lost: boolean;
  /** In a context: the exception that ended the program; else null */
  error: CodeError | null;
  /** Of the context; 0 without one */
  execution_count: number;
  /** Below /workspace, /output and the user's home; at most 1000 */
  files_changed: ProgramFile[];
  /** More changed than is told */
  files_truncated: boolean;
  language: string;
  /** The files that were created or written below /output, in order */
  outputs: Output[];
  /** In a context: what the program displayed and the value of its last expression, each by its media types: text as strings, JSON types as JSON, everything else in base64; is_main marks the value of the last expression. A table has application/vnd.cay.table+json {columns, rows, total_rows} as well */
  results: ({ [key: string]: unknown })[];
  /** Results were left out, being too large, or not what they say */
  results_truncated: boolean;
}

export interface CodeRequest {
  /** The program */
  code: string | null;
  /** Run in this context, which decides language, cwd, user and env, and has no stdin */
  context_id?: string;
  /** Default: the sandbox's workdir */
  cwd?: string;
  /** Default utf8 */
  encoding?: "utf8" | "base64";
  /** On top of the sandbox's; at most 1 MiB */
  env?: { [key: string]: string };
  /** End the process when the connection that started it ends. Otherwise it runs on, whichever form of exec started it */
  kill_on_disconnect?: boolean;
  /** Default: the context's, else the sandbox's runtime, else python */
  language?: string;
  /** Bounds what is kept of each stream, head and tail, not what is delivered live; 1 to 268435456, default 10485760 */
  max_output_bytes?: number | null;
  /** All of the input; absent: end of file at once. At most 64 MiB with the rest of the body */
  stdin?: string | null;
  /** The same for input that is no text; at most one of both */
  stdin_base64?: string;
  /** Default 60; null: none. Then the whole tree is killed */
  timeout_seconds?: number | null;
  /** A name or uid[:gid] of the sandbox */
  user?: string;
}

export interface ComposeRequest {
  /** Octal; default: that of the file it replaces, else 0644 */
  mode?: string | null;
  path: string;
  /** Absolute paths of files, in their order; removed once the file is there */
  sources: string[];
}

export interface CreateContextRequest {
  /** Default: the sandbox's workdir */
  cwd?: string;
  /** On top of the sandbox's; at most 1 MiB */
  env?: { [key: string]: string };
  /** Default: the sandbox's runtime, else python; one of python, javascript, typescript, bash, sh, php, ruby that the image has */
  language?: string;
  /** A name or uid[:gid] of the sandbox */
  user?: string;
}

export interface CreateMS {
  boot: number;
  queue: number;
  schedule: number;
  total: number;
}

export type EmptyEvent = { [key: string]: unknown };

export interface ErrorFrame {
  data: "canceled" | "error";
  detail: string;
  reason: string;
  /** Where to go on after this frame */
  seq: number;
  /** RFC 3339, UTC, milliseconds */
  ts: string | null;
  type: "status" | "stdout" | "stderr" | "gap" | "exit" | "error";
}

export interface EventList {
  items: SandboxEvent[];
  /** Give it as after for what follows; null at the end of what there is now */
  next_cursor: string | null;
  /** Events after the id that was given are no longer kept: the page begins with the oldest that is */
  reset: boolean;
}

export interface ExecAnswer {
  /** Why it did not start */
  detail?: string;
  duration_ms: number;
  /** 128+N for signal N; 127 not found, 126 not executable */
  exit_code: number;
  /** Ended by the platform or a client */
  killed: boolean;
  /** Bytes that are no UTF-8 became U+FFFD */
  lossy: PerStream;
  /** Exit code 0 and not timed out */
  ok: boolean;
  oom: boolean;
  process_id: string;
  reason: "exited" | "signaled" | "timeout" | "oom" | "killed" | "start_failed" | "sandbox_ended";
  /** Without SIG; null when it exited by itself */
  signal: string | null;
  /** With encoding utf8 */
  stderr?: string;
  /** With encoding base64 */
  stderr_base64?: string;
  /** The first run of stderr that is missing */
  stderr_gap?: Gap;
  /** True size in bytes, whatever was kept */
  stderr_size: number;
  /** With encoding utf8 */
  stdout?: string;
  /** With encoding base64 */
  stdout_base64?: string;
  /** The first run of stdout that is missing */
  stdout_gap?: Gap;
  /** True size in bytes, whatever was kept */
  stdout_size: number;
  timed_out: boolean;
  /** Less than the process wrote was kept or delivered */
  truncated: PerStream;
}

export interface ExecGap {
  bytes: number;
  /** Of the first byte that is missing */
  offset: number;
  stream: "stdout" | "stderr";
}

export interface ExecOutput {
  /** With encoding utf8 */
  data?: string;
  /** With encoding base64 */
  data_base64?: string;
}

export interface ExecRequest {
  /** A string is run by the sandbox's shell; a list is a program and its arguments */
  command: string | string[];
  /** Default: the sandbox's workdir */
  cwd?: string;
  /** Default utf8 */
  encoding?: "utf8" | "base64";
  /** On top of the sandbox's; at most 1 MiB */
  env?: { [key: string]: string };
  /** End the process when the connection that started it ends. Otherwise it runs on, whichever form of exec started it */
  kill_on_disconnect?: boolean;
  /** Bounds what is kept of each stream, head and tail, not what is delivered live; 1 to 268435456, default 10485760 */
  max_output_bytes?: number | null;
  /** All of the input; absent: end of file at once. At most 64 MiB with the rest of the body */
  stdin?: string | null;
  /** The same for input that is no text; at most one of both */
  stdin_base64?: string;
  /** Default 60; null: none. Then the whole tree is killed */
  timeout_seconds?: number | null;
  /** A name or uid[:gid] of the sandbox */
  user?: string;
}

export interface ExecStart {
  /** Where the stream begins */
  offset: number;
  process_id: string;
}

export interface Exit {
  /** Why it did not start */
  detail?: string;
  duration_ms: number;
  /** 128+N for signal N; 127 not found, 126 not executable */
  exit_code: number;
  /** Ended by the platform or a client */
  killed: boolean;
  /** Bytes that are no UTF-8 became U+FFFD */
  lossy: PerStream;
  /** Exit code 0 and not timed out */
  ok: boolean;
  oom: boolean;
  process_id: string;
  reason: "exited" | "signaled" | "timeout" | "oom" | "killed" | "start_failed" | "sandbox_ended";
  /** Without SIG; null when it exited by itself */
  signal: string | null;
  /** The first run of stderr that is missing */
  stderr_gap?: Gap;
  /** True size in bytes, whatever was kept */
  stderr_size: number;
  /** The first run of stdout that is missing */
  stdout_gap?: Gap;
  /** True size in bytes, whatever was kept */
  stdout_size: number;
  timed_out: boolean;
  /** Less than the process wrote was kept or delivered */
  truncated: PerStream;
}

export interface ExitFrame {
  data: "success" | "failed" | "timeout" | "canceled" | "error";
  duration_ms: number | null;
  exit_code: number | null;
  /** Where to go on after this frame */
  seq: number;
  signal: string | null;
  timed_out: boolean;
  /** RFC 3339, UTC, milliseconds */
  ts: string | null;
  type: "status" | "stdout" | "stderr" | "gap" | "exit" | "error";
}

export interface ExposeRequest {
  port: number;
  /** Ask for no token: whoever knows the URL may use it */
  public?: boolean;
}

export interface ExposedPort {
  /** RFC 3339, UTC, milliseconds */
  created_at: string | null;
  port: number;
  public: boolean;
  /** As the header Cay-Port-Token, or behind ?cay_port_token=; null when public */
  token: string | null;
  /** A host of its own, for HTTP and WebSocket */
  url: string;
}

export interface ExposedPortList {
  items: ExposedPort[];
  /** Give it as cursor for what follows; null at the end */
  next_cursor: string | null;
}

export interface Failure {
  detail: string;
  reason: string;
}

export interface File {
  etag?: string;
  gid: number;
  /** Octal */
  mode: string;
  /** RFC 3339, UTC, milliseconds */
  modified_at: string | null;
  name: string;
  path: string;
  /** Only where the path is not UTF-8: its percent-encoding, to be put behind ?path= as it is */
  path_percent?: string;
  size: number;
  /** Of a symlink */
  target: string | null;
  type: "file" | "directory" | "symlink" | "fifo" | "socket" | "device";
  uid: number;
  user: string;
}

export interface FileChange {
  path: string;
  /** Only where the path is not UTF-8, as of a file */
  path_percent?: string;
  /** Of a rename: what it is called now */
  to?: string;
  to_percent?: string;
  type: "create" | "write" | "remove" | "rename" | "chmod";
}

export interface FileList {
  items: File[];
  /** Give it as cursor for what follows; null at the end */
  next_cursor: string | null;
}

export interface Gap {
  bytes: number;
  offset: number;
}

export interface GapFrame {
  /** Bytes of output that were not kept */
  bytes: number;
  /** Where to go on after this frame */
  seq: number;
  stream: "stdout" | "stderr";
  /** RFC 3339, UTC, milliseconds */
  ts: string | null;
  type: "status" | "stdout" | "stderr" | "gap" | "exit" | "error";
}

export interface Info {
  /** Of cpu, memory_mb, disk_gb and pids, the limits that every worker keeps for real */
  enforced: string[];
  features: string[];
  isolation: string;
  limits: Limits;
  runtimes: Runtime[];
  version: string;
}

export interface Job {
  /** How many sandboxes it was given */
  attempt: number;
  /** Of the program; null until it has run */
  duration_ms: number | null;
  /** Why the platform, or a bound of the sandbox, ended it; else null */
  error: JobFault | null;
  /** null unless the program came to an end; as of an exec */
  exit_code: number | null;
  /** Below /session or /workspace, /output and the user's home; at most 1000 */
  files_changed: ProgramFile[];
  /** More changed than is told */
  files_truncated: boolean;
  /** null until then */
  finished_at: string | null;
  id: string;
  /** null: nothing was installed */
  install_log: string | null;
  language: string;
  /** Bytes that are no UTF-8 became U+FFFD; the stream has them */
  lossy: PerStream;
  metadata: { [key: string]: string };
  metrics: JobMetrics;
  /** The files that the program left below /output; kept as long as the job */
  outputs: JobOutput[];
  /** Some could not be kept */
  outputs_truncated: boolean;
  priority: number;
  /** RFC 3339, UTC, milliseconds */
  queued_at: string | null;
  /** Of this attempt; null until it has one */
  sandbox_id: string | null;
  /** null: none */
  session_id: string | null;
  session_shared: boolean;
  /** Without SIG; null when it exited by itself */
  signal: string | null;
  /** null until the program runs */
  started_at: string | null;
  /** Further ones may come */
  status: "queued" | "running" | "success" | "failed" | "timeout" | "canceled" | "error";
  /** As stdout */
  stderr: string;
  /** What is missing in stderr */
  stderr_gap?: Gap;
  /** Bytes that were written */
  stderr_size: number;
  /** Head and tail when it is longer than 1 MiB; bytes that are no UTF-8 become U+FFFD */
  stdout: string;
  /** What is missing in stdout */
  stdout_gap?: Gap;
  /** Bytes that were written */
  stdout_size: number;
  timed_out: boolean;
  timeout_seconds: number;
  /** Some is missing here */
  truncated: PerStream;
}

export interface JobFault {
  detail: string;
  /** Stable: oom, disk_full, no_capacity, worker_lost, boot_failed, sandbox_ended, unprocessable; further ones may come */
  reason: string;
}

export interface JobMetrics {
  /** Of its sandbox; null in lists */
  boot_ms: number | null;
  /** null until known, as the others */
  cpu_ms: number | null;
  peak_memory_mb: number | null;
  /** From the submission to the program's start, that of its sandbox included */
  queue_ms: number | null;
}

export interface JobOutput {
  /** The file, until 1 MiB has been answered in all */
  data_base64?: string;
  mime: string;
  path: string;
  /** The path percent-encoded, when it is no UTF-8 */
  path_percent?: string;
  size: number;
  /** Where to download it, for an hour, without a key, when it is not here */
  url?: string | null;
}

export interface JobRequest {
  /** The program */
  code: string | null;
  /** Of its sandbox, as the following ones */
  cpu?: number | null;
  disk_gb?: number | null;
  /** At most 1 MiB */
  env?: { [key: string]: string };
  /** Default python; see POST /v1/sandboxes/{id}/code */
  language?: string;
  memory_mb?: number | null;
  /** At most 64 keys of 1 KiB with their value */
  metadata?: { [key: string]: string };
  /** Only [] for now: no network. Rules are answered with 501 not_implemented */
  network?: string[] | {
    allow?: string[];
    deny?: string[];
  };
  /** Not implemented yet: leave it out, or empty */
  packages?: string[];
  pids?: number | null;
  /** Of the project's queued jobs those with a higher one are taken first; default 5 */
  priority?: number | null;
  /** How long it may wait to run; default 3600 */
  queue_timeout_seconds?: number | null;
  /** The program finds the session's files at /session, and runs there */
  session_id?: string | null;
  /** Others who say the same may use the session meanwhile; otherwise its jobs run one at a time */
  session_shared?: boolean;
  /** All of the input; absent: end of file at once */
  stdin?: string | null;
  /** The same for input that is no text; at most one of both */
  stdin_base64?: string;
  /** Of the program; default 60, at most 86400; not null */
  timeout_seconds?: number | null;
}

export interface JobSummary {
  /** How many sandboxes it was given */
  attempt: number;
  /** Of the program; null until it has run */
  duration_ms: number | null;
  /** Why the platform, or a bound of the sandbox, ended it; else null */
  error: JobFault | null;
  /** null unless the program came to an end; as of an exec */
  exit_code: number | null;
  /** null until then */
  finished_at: string | null;
  id: string;
  /** null: nothing was installed */
  install_log: string | null;
  language: string;
  metadata: { [key: string]: string };
  metrics: JobMetrics;
  priority: number;
  /** RFC 3339, UTC, milliseconds */
  queued_at: string | null;
  /** Of this attempt; null until it has one */
  sandbox_id: string | null;
  /** null: none */
  session_id: string | null;
  session_shared: boolean;
  /** Without SIG; null when it exited by itself */
  signal: string | null;
  /** null until the program runs */
  started_at: string | null;
  /** Further ones may come */
  status: "queued" | "running" | "success" | "failed" | "timeout" | "canceled" | "error";
  timed_out: boolean;
  timeout_seconds: number;
}

export interface JobSummaryList {
  items: JobSummary[];
  /** Give it as cursor for what follows; null at the end */
  next_cursor: string | null;
}

export interface Limits {
  default_cpu: number;
  default_disk_gb: number;
  default_memory_mb: number;
  default_pids: number;
  default_ttl_seconds: number;
  max_cpu: number;
  max_disk_gb: number;
  max_memory_mb: number;
  max_pids: number;
  max_sandboxes: number;
  max_ttl_seconds: number;
}

export interface LogEntry {
  /** RFC 3339, UTC, milliseconds */
  at: string | null;
  /** Digits; grows with every entry */
  id: string;
  level: "debug" | "info" | "warn" | "error";
  message: string;
  /** boot, agent, packages; further ones may come */
  source: string;
}

export interface LogEntryList {
  items: LogEntry[];
  /** Give it as cursor for what follows; null at the end */
  next_cursor: string | null;
}

export interface LogGap {
  bytes: number;
  /** Counting stdout and stderr together */
  offset: number;
  stream: "stdout" | "stderr";
}

export interface Match {
  etag?: string;
  gid: number;
  /** The first lines that match, with contains */
  lines?: MatchLine[];
  /** Octal */
  mode: string;
  /** RFC 3339, UTC, milliseconds */
  modified_at: string | null;
  name: string;
  path: string;
  /** Only where the path is not UTF-8: its percent-encoding, to be put behind ?path= as it is */
  path_percent?: string;
  size: number;
  /** Of a symlink */
  target: string | null;
  type: "file" | "directory" | "symlink" | "fifo" | "socket" | "device";
  uid: number;
  user: string;
}

export interface MatchLine {
  /** From 1 on */
  number: number;
  /** At most 512 bytes of the line */
  text: string;
}

export interface MkdirRequest {
  /** Octal; default 0755 */
  mode?: string | null;
  /** Make what is missing above it; one that exists is no error then */
  parents?: boolean;
  path: string;
  user?: string;
}

export interface MoveRequest {
  from: string;
  /** Replace what is there; otherwise that is 409 already_exists */
  overwrite?: boolean;
  to: string;
  user?: string;
}

export interface NetworkPolicy {
  allow: string[];
  deny: string[];
}

export interface Output {
  /** The file, until 20 MiB have been answered in all */
  data_base64?: string;
  /** By the name, else by the beginning of the file */
  mime: string;
  path: string;
  /** The path percent-encoded, when it is no UTF-8 */
  path_percent?: string;
  size: number;
  /** Where to download it, for an hour, when it is not here; for keys with the scope files */
  url?: string | null;
}

export interface OutputFrame {
  /** The output, where it is UTF-8 */
  data?: string | null;
  /** The output, where it is not */
  data_base64?: string;
  /** Where to go on after this frame */
  seq: number;
  /** RFC 3339, UTC, milliseconds */
  ts: string | null;
  type: "status" | "stdout" | "stderr" | "gap" | "exit" | "error";
}

export interface PerStream {
  stderr: boolean;
  stdout: boolean;
}

/** RFC 9457. Further members say more: limit_bytes, state, status_reason, sandbox_id … */
export interface Problem {
  /** For people: what was wrong and what to do */
  detail: string;
  /** The field, parameter or header at fault */
  field?: string;
  /** Stable; further values may come */
  reason: "already_exists" | "boot_failed" | "conflict" | "disk_full" | "forbidden" | "gone" | "idempotency_mismatch" | "internal" | "invalid_image" | "invalid_request" | "method_not_allowed" | "no_capacity" | "not_found" | "not_implemented" | "not_ready" | "paused" | "payload_too_large" | "precondition_failed" | "quota_exceeded" | "range_not_satisfiable" | "rate_limited" | "timeout" | "unauthorized" | "unavailable" | "unprocessable" | "unsupported_media_type" | "worker_lost";
  request_id: string;
  status: number;
  title: string;
  /** urn:cay:problem: and the reason */
  type: string;
  [key: string]: unknown;
}

export interface Process {
  /** Of the terminal, if it has one */
  cols?: number;
  command: string[];
  cpu_seconds: number;
  cwd: string;
  /** Why it did not start, or was ended */
  detail?: string;
  /** RFC 3339, UTC, milliseconds */
  ended_at: string | null;
  exit_code: number | null;
  /** prc_…; null for one that no client started */
  id: string | null;
  memory_mb: number;
  name: string | null;
  pid: number;
  ppid?: number;
  reason: string | null;
  rows?: number;
  signal: string | null;
  /** RFC 3339, UTC, milliseconds */
  started_at: string | null;
  /** As the kernel calls it: R, S, D, Z, T */
  state?: string;
  status: "running" | "exited" | "failed";
  tty: boolean;
  user: string;
}

export interface ProcessList {
  items: Process[];
  /** Give it as cursor for what follows; null at the end */
  next_cursor: string | null;
}

export interface ProcessLogs {
  exit_code: number | null;
  /** Runs that were not kept */
  gaps: LogGap[];
  /** Bytes that are no UTF-8 became U+FFFD */
  lossy: PerStream;
  /** Where the next page begins. Equal to size, and the process not running: all was read */
  next_offset: number;
  offset: number;
  process_id: string;
  /** Bytes of both streams so far */
  size: number;
  status: "running" | "exited" | "failed";
  /** With encoding utf8 */
  stderr?: string | null;
  /** With encoding base64 */
  stderr_base64?: string;
  /** With encoding utf8 */
  stdout?: string | null;
  /** With encoding base64 */
  stdout_base64?: string;
}

export interface ProcessRequest {
  /** Default 80 */
  cols?: number;
  /** A string is run by the sandbox's shell; a list is a program and its arguments */
  command: string | string[];
  /** Default: the sandbox's workdir */
  cwd?: string;
  /** Default utf8 */
  encoding?: "utf8" | "base64";
  /** On top of the sandbox's; at most 1 MiB */
  env?: { [key: string]: string };
  /** End the process when the connection that started it ends. Otherwise it runs on, whichever form of exec started it */
  kill_on_disconnect?: boolean;
  /** Bounds what is kept of each stream, head and tail, not what is delivered live; 1 to 268435456, default 10485760 */
  max_output_bytes?: number | null;
  /** 1 to 64 of letters, digits, '.', '_' and '-', neither all digits nor prc_…; unique among running processes */
  name?: string | null;
  /** Default 24 */
  rows?: number;
  /** All of the input; absent: end of file at once. At most 64 MiB with the rest of the body */
  stdin?: string | null;
  /** The same for input that is no text; at most one of both */
  stdin_base64?: string;
  /** stdin stays open, for POST …/stdin and WebSockets. Default: with tty */
  stdin_open?: boolean | null;
  /** Default 60; null: none. Then the whole tree is killed */
  timeout_seconds?: number | null;
  /** On a terminal of its own; all output is stdout */
  tty?: boolean;
  /** A name or uid[:gid] of the sandbox */
  user?: string;
}

export interface ProgramFile {
  op: "create" | "write" | "remove";
  path: string;
  /** The path percent-encoded, when it is no UTF-8 */
  path_percent?: string;
  size: number;
}

export interface ProjectEvent {
  /** RFC 3339, UTC, milliseconds */
  at: string | null;
  /** Of status: from, to, reason. Of oom: process_id, pid, rss_mb. Of disk_full: disk_mb, limit_mb. Of job_status: from, to, attempt. Of session_status: from, to, reason. from is empty of what is new */
  data: { [key: string]: unknown };
  /** Digits; grows with every event */
  id: string;
  /** Of a job's; null of others */
  job_id: string | null;
  /** Of a job the one that it runs in; null: none */
  sandbox_id: string | null;
  /** Of a session's; null of others */
  session_id: string | null;
  /** status, oom, disk_full (of a sandbox), job_status, session_status; further ones may come */
  type: string;
}

export interface ProjectEventList {
  items: ProjectEvent[];
  /** Give it as after for what follows; null at the end of what there is now */
  next_cursor: string | null;
  /** Events after the id that was given are no longer kept: the page begins with the oldest that is */
  reset: boolean;
}

export interface Record {
  /** Of a process the command, of a program its beginning; at most 4096 bytes. Empty where the server does not record commands */
  command: string;
  /** Of a process as its sandbox says, of a sandbox as its worker measured */
  cpu_seconds: number;
  duration_ms: number;
  /** RFC 3339, UTC, milliseconds */
  ended_at: string | null;
  /** null without a program's end */
  exit_code: number | null;
  /** Of what it tells: prc_, job_, ses_ or sbx_ */
  id: string;
  /** Who asked for it; null: the platform itself, or not known */
  key_id: string | null;
  /** sandbox, job, session, exec, code, process, terminal; further ones may come */
  kind: string;
  /** Of programs and jobs; null of others */
  language: string | null;
  name: string;
  /** It ended as one would wish: exit code 0, success, deleted or past its time */
  ok: boolean;
  /** Of a process its reason, of a job its status, of a sandbox or session its status_reason */
  outcome: string;
  /** As cpu_seconds */
  peak_memory_mb: number;
  project_id: string;
  /** Where it ran; of a job the one of its last attempt; null: nowhere */
  sandbox_id: string | null;
  /** Whose files it could reach; null: none */
  session_id: string | null;
  /** Without SIG; null when it exited by itself */
  signal: string | null;
  /** RFC 3339, UTC, milliseconds */
  started_at: string | null;
  stderr_bytes: number;
  /** That were written, kept or not */
  stdout_bytes: number;
  /** Of the request, where it was traced; null otherwise */
  trace_id: string | null;
}

export interface RecordList {
  items: Record[];
  /** Give it as cursor for what follows; null at the end */
  next_cursor: string | null;
}

export interface ResizeRequest {
  cols: number;
  rows: number;
}

export interface ResumeRequest {
  /** The end will be now + this; absent: what was left */
  ttl_seconds?: number | null;
}

export interface Runtime {
  exec: string[];
  image: string;
  name: string;
  version: string;
}

export interface RuntimeList {
  items: Runtime[];
  /** Give it as cursor for what follows; null at the end */
  next_cursor: string | null;
}

export interface Sample {
  /** RFC 3339, UTC, milliseconds */
  at: string | null;
  /** Used, on average since the sample before */
  cpu_cores: number;
  /** Used since the start */
  cpu_seconds: number;
  disk_mb: number;
  memory_mb: number;
  network_rx_bytes: number;
  network_tx_bytes: number;
  /** At most so far */
  peak_memory_mb: number;
  pids: number;
}

export interface SampleList {
  /** Between samples as they are taken; those of a long span are further apart */
  interval_seconds: number;
  items: Sample[];
}

export interface Sandbox {
  auto_resume: boolean;
  cpu: number;
  create_ms: CreateMS;
  /** RFC 3339, UTC, milliseconds */
  created_at: string | null;
  /** A sentence on why it failed */
  detail: string | null;
  disk_gb: number;
  /** RFC 3339, UTC, milliseconds */
  ended_at: string | null;
  env: { [key: string]: string };
  /** null before READY and while PAUSED, when the clock stands still */
  expires_at: string | null;
  id: string;
  /** null: none */
  idle_timeout_seconds: number | null;
  image: string;
  /** RFC 3339, UTC, milliseconds */
  last_active_at: string | null;
  /** The job or the session that it serves; null: it is a client's own */
  managed_by: string | null;
  memory_mb: number;
  metadata: { [key: string]: string };
  network: string[];
  on_timeout: "terminate" | "pause";
  paused_ttl_seconds: number;
  pids: number;
  /** RFC 3339, UTC, milliseconds */
  ready_at: string | null;
  runtime: string | null;
  runtime_id: string | null;
  /** The same as id */
  sandbox_id: string;
  /** Of the session whose files are at /session; null: none */
  session_id: string | null;
  session_shared: boolean;
  status: "CREATING" | "READY" | "PAUSED" | "TERMINATING" | "TERMINATED" | "FAILED";
  /** Why it ended, or is ending */
  status_reason: string | null;
  ttl_seconds: number;
  usage: Usage;
  user: string;
  workdir: string;
  worker_id: string | null;
}

export interface SandboxEvent {
  /** RFC 3339, UTC, milliseconds */
  at: string | null;
  /** Of status: from, to, reason. Of oom: process_id, pid, rss_mb. Of disk_full: disk_mb, limit_mb */
  data: { [key: string]: unknown };
  /** Digits; grows with every event */
  id: string;
  sandbox_id: string;
  /** status, oom, disk_full; further ones may come */
  type: string;
}

export interface SandboxList {
  items: Sandbox[];
  /** Give it as cursor for what follows; null at the end */
  next_cursor: string | null;
}

export interface SandboxRequest {
  /** An exec or a file access resumes it when it is paused */
  auto_resume?: boolean | null;
  /** Cores; decimals are allowed */
  cpu?: number | null;
  disk_gb?: number | null;
  /** At most 1 MiB */
  env?: { [key: string]: string };
  /** Not implemented yet: leave it out, or empty */
  gpu?: unknown;
  /** 0 or null: none */
  idle_timeout_seconds?: number | null;
  /** An OCI reference, or host: the machine's own programs, read-only */
  image?: string | null;
  memory_mb?: number | null;
  /** At most 64 keys of 1 KiB with their value */
  metadata?: { [key: string]: string };
  /** Only [] for now: no network. Rules are answered with 501 not_implemented */
  network?: string[] | {
    allow?: string[];
    deny?: string[];
  };
  /** What the end of the TTL or of the idle timeout does */
  on_timeout?: "terminate" | "pause" | null;
  /** Not implemented yet: leave it out, or empty */
  packages?: unknown;
  paused_ttl_seconds?: number | null;
  /** Processes and threads at once */
  pids?: number | null;
  /** Bounds the wait for capacity */
  queue_timeout_seconds?: number | null;
  /** Not implemented yet: leave it out, or empty */
  region?: unknown;
  /** A runtime by name, see GET /v1/runtimes; at most one of image and runtime */
  runtime?: string | null;
  /** Not implemented yet: leave it out, or empty */
  secrets?: unknown;
  /** Its files are at /session */
  session_id?: string | null;
  /** Others who say the same may use the session meanwhile */
  session_shared?: boolean;
  /** Not implemented yet: leave it out, or empty */
  snapshot?: unknown;
  /** Not implemented yet: leave it out, or empty */
  template?: unknown;
  /** From READY to the end */
  ttl_seconds?: number | null;
  user?: string | null;
  /** Not implemented yet: leave it out, or empty */
  volumes?: unknown;
  workdir?: string | null;
}

export interface SandboxUpdate {
  /** 0 or null: none */
  idle_timeout_seconds?: number | null;
  /** Replaces the whole */
  metadata?: { [key: string]: string };
  on_timeout?: "terminate" | "pause" | null;
}

export interface SearchPage {
  items: Match[];
  /** Give it as cursor for what follows; null at the end */
  next_cursor: string | null;
  /** The search used up the work that one request may cost; it goes on with next_cursor */
  truncated: boolean;
}

export interface Session {
  /** RFC 3339, UTC, milliseconds */
  created_at: string | null;
  disk_gb: number;
  /** RFC 3339, UTC, milliseconds */
  ended_at: string | null;
  /** Unless it is used until then */
  expires_at: string | null;
  id: string;
  /** RFC 3339, UTC, milliseconds */
  last_used_at: string | null;
  metadata: { [key: string]: string };
  /** null: none */
  name: string | null;
  /** archived: in storage until the next use brings it back; further ones may come */
  status: "active" | "archiving" | "archived" | "restoring" | "deleting" | "deleted";
  /** Why it ended, or is ending: deleted, ttl_expired */
  status_reason: string | null;
  ttl_seconds: number;
  /** The sandboxes that have it at /session now */
  used_by: string[];
  /** What its files are called on the worker that has them */
  volume: string;
  /** Where its files are; null before the first use and while it is archived */
  worker_id: string | null;
}

export interface SessionList {
  items: Session[];
  /** Give it as cursor for what follows; null at the end */
  next_cursor: string | null;
}

export interface SessionRequest {
  /** All that it can hold; decimals are allowed */
  disk_gb?: number | null;
  /** At most 64 keys of 1 KiB with their value */
  metadata?: { [key: string]: string };
  /** 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'; no two sessions of a project that have not ended have the same */
  name?: string | null;
  /** From its last use to its end; what exceeds the maximum is capped. A session in use does not end */
  ttl_seconds?: number | null;
}

export interface SignRequest {
  /** PUT only: a larger body is 413 and nothing is written */
  max_bytes?: number | null;
  /** GET also allows HEAD */
  method: "GET" | "PUT";
  path: string;
  /** How long the URL is good; default 3600 */
  ttl_seconds?: number | null;
  /** Whose access and ownership count; default the sandbox's user */
  user?: string;
}

export interface SignalRequest {
  /** INT, TERM, KILL …, with or without SIG */
  signal: string;
  /** Also to everything it started */
  tree?: boolean;
}

export interface SignedFile {
  /** RFC 3339, UTC, milliseconds */
  expires_at: string | null;
  max_bytes: number | null;
  method: "GET" | "PUT";
  path: string;
  /** Absolute, with the scheme and host of this request */
  url: string;
}

export interface StatusAnswer {
  status: string;
}

export interface StatusFrame {
  attempt: number;
  data: "queued" | "running";
  /** Where to go on after this frame */
  seq: number;
  /** RFC 3339, UTC, milliseconds */
  ts: string | null;
  type: "status" | "stdout" | "stderr" | "gap" | "exit" | "error";
}

export interface StdinAnswer {
  /** Bytes that the process has been given so far, by everybody */
  stdin_offset: number;
}

export interface Ticket {
  /** RFC 3339, UTC, milliseconds */
  expires_at: string | null;
  ticket: string;
}

export interface TicketRequest {
  /** GET, also for SSE and WebSocket */
  method: "GET";
  /** Path and query of the request that the ticket is for; an absolute URL is taken too */
  url: string;
}

export interface TimeoutRequest {
  /** Never bring the end nearer */
  extend_only?: boolean;
  /** The end will be now + this; what exceeds the maximum is capped */
  ttl_seconds: number | null;
}

export interface Usage {
  cpu_seconds: number;
  disk_mb: number;
  egress_bytes: number;
  memory_mb_seconds: number;
  peak_memory_mb: number;
}

export interface UsageItem {
  /** Promised cores × running seconds */
  allocated_cpu_seconds: number;
  /** Promised disk × running and paused seconds */
  allocated_disk_gb_seconds: number;
  /** Promised memory × running and paused seconds */
  allocated_memory_mb_seconds: number;
  /** Really used */
  cpu_seconds: number;
  /** UTC; with group_by=day */
  day?: string;
  egress_bytes: number;
  /** Really used */
  memory_mb_seconds: number;
  paused_seconds: number;
  /** With group_by=project */
  project_id?: string;
  running_seconds: number;
  /** With group_by=sandbox */
  sandbox_id?: string;
  /** How many different ones */
  sandboxes: number;
}

export interface UsageReport {
  /** The first day, UTC */
  from: string;
  group_by: string[];
  /** By day, project and sandbox. What used nothing is left out */
  items: UsageItem[];
  /** Give it as cursor for what follows; null at the end */
  next_cursor: string | null;
  /** The last day, UTC; it is counted */
  to: string;
  /** Of all items, not of this page alone */
  total: Amounts;
}

export type WatchOverflow = { [key: string]: unknown };

export interface WatchReady {
  path: string;
}
