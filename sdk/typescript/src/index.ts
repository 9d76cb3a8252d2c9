/**
 * The Cay SDK: sandboxes, jobs and sessions for code that is not trusted, over the public HTTP API of a Cay server. It starts no servers and keeps no state
 * but connections. Durations are in seconds.
 *
 * @packageDocumentation
 */
import "./dispose.js";

export { Sandbox, type CreateSandboxOptions, type Fork } from "./sandbox.js";
export { Job, type JobInfo, type JobStatus, type JobSummary, type ListJobsOptions, type StreamOptions, type SubmitOptions } from "./job.js";
export { Session, type CreateSessionOptions, type ListSessionsOptions, type SessionFiles, type SessionInfo, type SessionStatus } from "./session.js";
export { History, type HistoryRecord, type ListHistoryOptions, type RecordKind } from "./history.js";
export { Usage, type GetUsageOptions, type UsageAmounts, type UsageGroup, type UsageItem, type UsageReport } from "./usage.js";
export { Audit, type AuditEntry, type ListAuditOptions } from "./audit.js";
export { Events, type FollowEventsOptions, type ListEventsOptions, type ProjectEvent, type ProjectEventType } from "./events.js";
export { Server } from "./server.js";
export { CaySandboxError } from "./errors.js";
export { createTar, readTar, type TarEntry, type TarInput } from "./archive/tar.js";
export type { DownloadReport } from "./archive/directory.js";
export type { BytesLike, Content } from "./bytes.js";
export type { ClientOptions } from "./client.js";
export type { Command } from "./exec.js";
export type { ContextInfo, ContextRef, Contexts, CreateContextOptions } from "./contexts.js";
export type { FileOptions, Files, ReadOptions, SearchHit, SearchOptions, SignedUrl, WriteOptions } from "./files.js";
export type { ArchiveFormat, ArchiveReport, FilePath, FileTree, ReadFields, WriteFields } from "./tree.js";
export type { ArmedWatch, Watch, WatchEvent, WatchOptions } from "./watch.js";
export type { ErrorFrame, ExitFrame, GapFrame, JobFrame, OutputFrame, StatusFrame } from "./jobstream.js";
export type { List, ListFields, Page, PastFields } from "./list.js";
export type { FollowOptions, HistoryOptions, Reset } from "./feed.js";
export type { LogEntry, Metrics, MetricsOptions, MetricsSample, SandboxEvent } from "./observe.js";
export type { ExposedPort, PortRequest, Ports } from "./ports.js";
export type { LogsOptions, ProcessLogs, ProcessRef, Processes, StartOptions } from "./processes.js";
export type { AttachOptions, LiveProcess, LiveProcessOptions, TerminalOptions, Transport } from "./live.js";
export type * from "./types.js";
