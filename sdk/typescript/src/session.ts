import { Client, type ClientOptions } from "./client.js";
import { CaySandboxError } from "./errors.js";
import type * as model from "./generated/model.js";
import type * as wire from "./generated/wire.js";
import { Job, type JobInfo, type SubmitOptions } from "./job.js";
import { List, type ListFields, listQuery, pageOf } from "./list.js";
import { defined } from "./names.js";
import { type FilePath, FileTree } from "./tree.js";
import type { Abortable, FileEntry } from "./types.js";

const maxDeletes = 10; // requests, of which each waits a minute for the end

export type SessionInfo = model.Session;
export type SessionStatus = SessionInfo["status"];

export interface CreateSessionOptions extends Abortable {
  /** Unique among the project's sessions that have not ended. */
  name?: string;
  /** From its last use to its end. */
  ttlSeconds?: number;
  /** What its files may take. */
  diskGb?: number;
  metadata?: Record<string, string>;
  /** Makes a repeated create answer with the first one's session; made where it is missing. */
  idempotencyKey?: string;
}

export interface ListSessionsOptions extends ListFields {
  /** Default: those that have not ended. */
  status?: SessionStatus | SessionStatus[];
  name?: string;
}

/**
 * Files that outlive sandboxes: a volume at /session of every job and sandbox that uses it, one after another, or at once where both ask
 * for it.
 */
export class Session {
  readonly id: string;
  readonly files: SessionFiles;
  readonly #client: Client;
  readonly #path: string;
  #info: SessionInfo;

  private constructor(client: Client, info: SessionInfo) {
    this.id = info.id;
    this.#client = client;
    this.#info = info;
    this.#path = pathOf(info.id);
    this.files = new SessionFiles(client, this.#path);
  }

  static async create(options: CreateSessionOptions & ClientOptions = {}): Promise<Session> {
    const client = new Client(options);
    const { name, ttlSeconds, diskGb, metadata, signal, idempotencyKey } = options;
    const json = defined({ name, ttl_seconds: ttlSeconds, disk_gb: diskGb, metadata } satisfies { [K in keyof wire.SessionRequest]-?: unknown });
    return new Session(client, await client.json({ method: "POST", path: "/v1/sessions", json, signal, idempotent: true, idempotencyKey }));
  }

  /** Takes up a session by its id. */
  static async connect(id: string, options: ClientOptions & Abortable = {}): Promise<Session> {
    const client = new Client(options);
    return new Session(client, await client.json({ method: "GET", path: pathOf(id), signal: options.signal }));
  }

  /** Sessions of the key's project, newest first. Await the list, or loop over it page by page. */
  static list(options: ListSessionsOptions & ClientOptions = {}): List<SessionInfo> {
    const client = new Client(options);
    return new List(async (cursor) => pageOf(await client.json<{ items: SessionInfo[] | null; nextCursor: string | null }>({
      method: "GET", path: "/v1/sessions", query: { ...listQuery(options, options.status, cursor), name: options.name }, signal: options.signal,
    })));
  }

  /** The session as it was when it was last asked for. */
  get info(): SessionInfo {
    return this.#info;
  }

  get status(): SessionStatus {
    return this.#info.status;
  }

  /** Asks for the session as it is now. */
  async refresh(options: Abortable = {}): Promise<SessionInfo> {
    return (this.#info = await this.#client.json({ method: "GET", path: this.#path, signal: options.signal }));
  }

  /** Puts a program in the queue that uses the session. Those of a session run one at a time unless it is `sessionShared`. */
  submit(options: Omit<SubmitOptions, "sessionId">): Promise<Job> {
    return Job.submitWith(this.#client, { ...options, sessionId: this.id });
  }

  /** Runs a program in the session to its end. After an abort it runs on. */
  async run(options: Omit<SubmitOptions, "sessionId">): Promise<JobInfo> {
    return await (await this.submit(options)).wait({ signal: options.signal });
  }

  /** Ends the session, and with it its files, which are gone when this is done. In use it is a conflict, unless with force. */
  async delete(options: Abortable & { force?: boolean } = {}): Promise<void> {
    for (let request = 0; request < maxDeletes; request++) {
      const status = await this.#client.discard({ method: "DELETE", path: this.#path, query: { force: options.force }, signal: options.signal, timeout: 120 });
      if (status !== 202) return;
    }
    throw new CaySandboxError(`session ${this.id}: its files are still being deleted`, { reason: "timeout" });
  }
}

/**
 * The files of a session; no sandbox has to run. Paths are relative to it, or absolute below /session, as the answers are: `a/b`, `/a/b`
 * and `/session/a/b` are the same, and `/` is all of it.
 */
export class SessionFiles extends FileTree {
  /** @internal */
  constructor(client: Client, session: string) {
    super(client, { content: `${session}/files/content`, list: `${session}/files`, archive: `${session}/archive` });
  }

  /** The entries of a directory, default the uppermost, with `depth` those below it as well. Await the list, or loop over it. */
  override list(path: FilePath = "/", options: Abortable & { depth?: number; limit?: number } = {}): List<FileEntry> {
    return super.list(path, options);
  }
}

function pathOf(id: string): string {
  return `/v1/sessions/${encodeURIComponent(id)}`;
}
