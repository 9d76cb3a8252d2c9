// Sessions of the fake: directories that jobs and sandboxes find at /session, by a link in their root.
import * as fs from "node:fs";
import type { IncomingMessage, ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import { join, posix } from "node:path";
import { FakeFiles } from "./files.js";
import type { FakeHistory } from "./history.js";
import { Keyed, Problem, notFound, page, readJson, sendJson } from "./http.js";
import { hasMetadata } from "./jobs.js";
import { newId } from "./process.js";

type Fields = Record<string, unknown>;

/** A sandbox's use of a session. */
export interface SessionUse {
  /** Puts the session's files at /session of a root. */
  mount(root: string): void;
  end(): void;
}

class FakeSession {
  readonly id = newId("ses");
  readonly fields: Fields;
  readonly root = fs.mkdtempSync(join(tmpdir(), "cay-fake-session-"));
  readonly files = new FakeFiles(this.root);
  readonly users = new Map<string, { shared: boolean }>(); // by sandbox
  readonly #createdAt = new Date();
  readonly #history: FakeHistory;
  #endedAt: Date | undefined;
  #turns: Promise<unknown> = Promise.resolve();

  constructor(fields: Fields, history: FakeHistory) {
    this.fields = fields;
    this.#history = history;
    fs.mkdirSync(join(this.root, "session"));
    history.event({ session_id: this.id }, "session_status", { from: "", to: "active" });
  }

  get ended(): boolean {
    return this.#endedAt !== undefined;
  }

  end(): void {
    if (this.ended) return;
    this.#endedAt = new Date();
    fs.rmSync(this.root, { recursive: true, force: true });
    this.#history.event({ session_id: this.id }, "session_status", { from: "active", to: "deleted", reason: "deleted" });
    this.#history.record("session", this.id, this.#createdAt, { session_id: this.id, name: this.fields["name"] ?? "", outcome: "deleted", ok: true });
  }

  get info(): Fields {
    const { name, ttl_seconds: ttl = 86_400, disk_gb: disk = 10, metadata = {} } = this.fields;
    return {
      id: this.id, name: name ?? null, status: this.ended ? "deleted" : "active", status_reason: this.ended ? "deleted" : null, volume: `ses-${this.id.slice(4)}`,
      disk_gb: disk, ttl_seconds: ttl, worker_id: null, created_at: this.#createdAt.toISOString(), last_used_at: this.#createdAt.toISOString(),
      expires_at: new Date(Date.now() + Number(ttl) * 1000).toISOString(), ended_at: this.#endedAt?.toISOString() ?? null, used_by: [...this.users.keys()], metadata,
    };
  }

  /** Takes the session for a sandbox, or says which other has it. */
  use(sandbox: string, shared: boolean): SessionUse {
    for (const [other, how] of this.users) {
      if (!shared || !how.shared) throw new Problem(409, "conflict", `session_id: sandbox ${other} uses the session`, {}, { sandbox_id: other });
    }
    this.users.set(sandbox, { shared });
    return { mount: (root) => fs.symlinkSync(join(this.root, "session"), join(root, "session")), end: () => void this.users.delete(sandbox) };
  }

  /** Runs something in the session once it is its turn. */
  async turn(sandbox: string, shared: boolean, run: (use: SessionUse) => Promise<void>): Promise<void> {
    const whole = async (): Promise<void> => {
      const use = this.use(sandbox, shared);
      await run(use).finally(() => use.end());
    };
    if (shared) return whole();
    this.#turns = this.#turns.then(whole);
    await this.#turns;
  }
}

export class FakeSessions {
  readonly sessions = new Map<string, FakeSession>();
  readonly #keyed = new Keyed<FakeSession>();
  readonly #history: FakeHistory;

  constructor(history: FakeHistory) {
    this.#history = history;
  }

  /** A session that a body names. */
  find(id: string): FakeSession {
    const session = this.sessions.get(id);
    if (session === undefined) throw new Problem(422, "unprocessable", `session_id: session ${id} does not exist`);
    if (session.ended) throw gone(session);
    return session;
  }

  stop(): void {
    for (const session of this.sessions.values()) session.end();
  }

  async handle(req: IncomingMessage, res: ServerResponse, parts: string[], query: URLSearchParams): Promise<void> {
    const [id, ...rest] = parts;
    if (id === undefined) {
      if (req.method === "GET") return this.#list(res, query);
      const fields = await readJson(req);
      return sendJson(res, 201, this.#keyed.get(req, () => this.#create(fields)).info);
    }
    const session = this.sessions.get(id);
    if (session === undefined) throw notFound("session");
    const route = rest.join("/");
    if (route === "" && req.method === "GET") return sendJson(res, 200, session.info);
    if (route === "" && req.method === "DELETE") {
      const [user] = session.users.keys();
      if (user !== undefined && query.get("force") !== "true") throw new Problem(409, "conflict", `sandbox ${user} uses the session`, {}, { sandbox_id: user });
      session.end();
      return sendJson(res, 204);
    }
    const inside = { files: "files/list", "files/content": "files", archive: "archive" }[route];
    if (inside === undefined) throw notFound("route");
    if (session.ended) throw gone(session);
    query.set("path", below(query.get("path") ?? ""));
    return session.files.handle(req, res, inside, query);
  }

  #create(fields: Fields): FakeSession {
    const { name } = fields;
    if (name !== undefined && !/^[A-Za-z0-9._-]{1,64}$/.test(String(name))) throw new Problem(400, "invalid_request", "name: it has characters that a name cannot have");
    const taken = name === undefined ? undefined : [...this.sessions.values()].find((s) => !s.ended && s.fields["name"] === name);
    if (taken !== undefined) throw new Problem(409, "already_exists", `name: session ${taken.id} has it`, {}, { session_id: taken.id });
    const session = new FakeSession(fields, this.#history);
    this.sessions.set(session.id, session);
    return session;
  }

  #list(res: ServerResponse, query: URLSearchParams): void {
    const statuses = query.get("status")?.split(",");
    const name = query.get("name");
    const found = [...this.sessions.values()].reverse().filter((session) =>
      (statuses?.includes(String(session.info["status"])) ?? !session.ended) && (name === null || session.fields["name"] === name) && hasMetadata(session.fields, query));
    sendJson(res, 200, page(found.map((session) => session.info), query));
  }
}

const gone = (session: FakeSession): Problem => new Problem(410, "gone", `session ${session.id} is deleted`, {}, { status_reason: "deleted" });

/** A path of the session as it is inside of a sandbox. */
function below(path: string): string {
  const absolute = posix.join("/", path);
  const inside = absolute === "/session" || absolute.startsWith("/session/") ? absolute : posix.join("/session", absolute);
  return inside.replace(/\/$/, "");
}
