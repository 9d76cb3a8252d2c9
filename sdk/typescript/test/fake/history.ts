// What the fake remembers: events as they happen, records of what has ended, what sandboxes took, and who changed what.
import type { IncomingMessage, ServerResponse } from "node:http";
import { operations } from "../../src/generated/operations.js";
import { EventStream, Problem, answers, notFound, page, sendJson } from "./http.js";
import type { FakeProcess } from "./process.js";

type Fields = Record<string, unknown>;

export const project = `prj_${"0".repeat(26)}`;
export const keyId = `key_${"0".repeat(26)}`;

/** Operations that work inside of sandboxes, which the audit log leaves out unless they are refused. */
const routine = /^(exec|run-code|(create|delete|interrupt|restart)-context|write-stdin|(signal|resize)-process|(write|delete|move|compose)-file|make-directory|change-mode|write-archive|(write|delete)-session-(file|archive))$/;

/** Whose an event is. */
export interface Owner {
  sandbox_id?: string;
  job_id?: string;
  session_id?: string;
}

/** What a sandbox took on the day on which it was counted. */
interface Taken {
  day: string;
  sandbox_id: string;
  running_seconds: number;
  paused_seconds: number;
  cpu: number;
  memory_mb: number;
  disk_gb: number;
}

export class FakeHistory {
  readonly #records: Fields[] = [];
  readonly #events: Fields[] = [];
  readonly #audit: Fields[] = [];
  readonly #taken: Taken[] = [];
  #waiting: (() => void)[] = [];

  /** Notes an event of an owner. */
  event(owner: Owner, type: string, data: Fields): void {
    this.#events.push({ sandbox_id: null, job_id: null, session_id: null, ...owner, id: String(this.#events.length + 1), type, at: new Date().toISOString(), data });
    for (const wake of this.#waiting.splice(0)) wake();
  }

  /** Fires with the next event. */
  next(): Promise<void> {
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** Keeps the record of what has ended. */
  record(kind: string, id: string, startedAt: Date, how: Fields): void {
    const endedAt = new Date();
    this.#records.push({
      id, kind, project_id: project, key_id: keyId, sandbox_id: null, session_id: null, name: "", command: "", language: null, exit_code: null, signal: null,
      started_at: startedAt.toISOString(), ended_at: endedAt.toISOString(), duration_ms: endedAt.getTime() - startedAt.getTime(),
      stdout_bytes: 0, stderr_bytes: 0, cpu_seconds: 0, peak_memory_mb: 0, trace_id: null, ...how,
    });
  }

  /** Keeps the record of a process that has ended. */
  recordProcess(kind: string, process: FakeProcess, how: Fields): void {
    const { exit = {} } = process;
    this.record(kind, process.id, process.startedAt, {
      name: process.name ?? "", outcome: exit["reason"], ok: exit["ok"], exit_code: exit["exit_code"], signal: exit["signal"],
      duration_ms: exit["duration_ms"], stdout_bytes: exit["stdout_size"], stderr_bytes: exit["stderr_size"], ...how,
    });
  }

  /** Counts what a sandbox took. */
  take(taken: Omit<Taken, "day">): void {
    this.#taken.push({ day: new Date().toISOString().slice(0, 10), ...taken });
  }

  /** Keeps the entry of a request that was answered, where it belongs into the audit log. */
  audit(req: IncomingMessage, res: ServerResponse): void {
    const path = new URL(req.url ?? "", "http://fake").pathname;
    const action = Object.entries(operations).find(([, { method, path: pattern }]) =>
      method === req.method && new RegExp(`^${pattern.replaceAll(/\{[^}]*\}/g, "[^/]+")}$`).test(path))?.[0] ?? "unmatched";
    const refused = res.statusCode === 401 || res.statusCode === 403;
    if (!refused && (req.method === "GET" || req.method === "HEAD" || routine.test(action))) return;
    const answer = (answers.get(res) ?? {}) as { id?: string; reason?: string };
    this.#audit.push({
      id: String(this.#audit.length + 1), at: new Date().toISOString(), project_id: res.statusCode === 401 ? null : project, key_id: res.statusCode === 401 ? null : keyId,
      action, object: /\/((?:sbx|job|ses)_\w+)/.exec(path)?.[1] ?? answer.id ?? null, status: res.statusCode, reason: answer.reason ?? null,
      request_id: String(res.getHeader("x-request-id")), trace_id: null, remote_addr: "127.0.0.1", user_agent: req.headers["user-agent"] ?? "",
    });
  }

  async handle(req: IncomingMessage, res: ServerResponse, route: string, id: string | undefined, query: URLSearchParams): Promise<void> {
    switch (route) {
      case "history": {
        if (id === undefined) return sendJson(res, 200, page(this.#found(query), query));
        const record = this.#records.find((one) => one["id"] === id);
        if (record === undefined) throw notFound(`the record of ${id}`);
        return sendJson(res, 200, record);
      }
      case "usage":
        return sendJson(res, 200, this.#usage(query));
      case "audit": {
        const action = query.get("action");
        if (action !== null && !Object.hasOwn(operations, action)) throw new Problem(400, "invalid_request", `action: there is no operation ${action}`, {}, { field: "action" });
        const all = query.get("all_projects") === "true";
        return sendJson(res, 200, page(past(this.#audit, "at", query).filter((entry) => (all || entry["project_id"] !== null) && has(entry, query, "key_id", "action", "object")), query));
      }
      default:
        return await this.send(req, res, query, (event) => has(event, query, ["types", "type"]));
    }
  }

  /** Answers with the events that are wanted, as a page or live until `last` says which is the last one. */
  async send(req: IncomingMessage, res: ServerResponse, query: URLSearchParams, wanted: (event: Fields) => boolean, last: (event: Fields) => boolean = () => false): Promise<void> {
    let after = Number(req.headers["last-event-id"] ?? query.get("after") ?? 0);
    if (query.get("follow") !== "true") {
      const limit = Number(query.get("limit") ?? 50);
      const items = this.#events.slice(after).filter(wanted).slice(0, limit);
      return sendJson(res, 200, { items, next_cursor: items.length === limit ? items[limit - 1]?.["id"] : null, reset: false });
    }
    const stream = new EventStream(res);
    for (let over = false; !over && !stream.isGone; ) {
      const fresh = this.#events.slice(after).filter(wanted);
      for (const event of fresh) {
        after = Number(event["id"]);
        await stream.send(String(event["type"]), event, after);
        over ||= last(event);
      }
      if (fresh.length === 0) await Promise.race([this.next(), stream.gone]);
    }
    stream.end();
  }

  #found(query: URLSearchParams): Fields[] {
    const kinds = ["sandbox", "job", "session", "exec", "code", "process", "terminal"];
    const wrong = query.get("kind")?.split(",").find((kind) => !kinds.includes(kind));
    if (wrong !== undefined) throw new Problem(400, "invalid_request", `kind may hold ${kinds.join(", ")}; not ${wrong}`, {}, { field: "kind" });
    const text = (query.get("text") ?? "").toLowerCase();
    const ok = query.get("ok");
    return past(this.#records, "ended_at", query).filter((record) =>
      has(record, query, "kind", "sandbox_id", "session_id", "key_id", "outcome") && (ok === null || String(record["ok"]) === ok) &&
      `${String(record["command"])}\n${String(record["name"])}`.toLowerCase().includes(text));
  }

  #usage(query: URLSearchParams): Fields {
    const groups = (query.get("group_by") ?? "day").split(",");
    const today = new Date().toISOString().slice(0, 10);
    const to = query.get("to")?.slice(0, 10) ?? today;
    const from = query.get("from")?.slice(0, 10) ?? new Date(Date.parse(to) - 29 * 86_400_000).toISOString().slice(0, 10);
    if (from > to) throw new Problem(400, "invalid_request", "from must not be after to", {}, { field: "from" });
    const counted = this.#taken.filter((taken) => taken.day >= from && taken.day <= to && has(taken as unknown as Fields, query, "sandbox_id"));
    const rows = new Map<string, { of: Fields; taken: Taken[] }>();
    for (const taken of counted) {
      const whole: Fields = { day: taken.day, sandbox: taken.sandbox_id, project };
      const of = Object.fromEntries(groups.map((group) => [group === "day" ? group : `${group}_id`, whole[group]]));
      const key = JSON.stringify(of);
      rows.set(key, { of, taken: [...(rows.get(key)?.taken ?? []), taken] });
    }
    const { items, next_cursor } = page([...rows.values()].map(({ of, taken }) => ({ ...of, ...amounts(taken) })), query);
    return { from, to, group_by: groups, items, total: amounts(counted), next_cursor };
  }
}

function amounts(all: Taken[]): Fields {
  const sum = (of: (taken: Taken) => number): number => all.reduce((total, taken) => total + of(taken), 0);
  const held = (taken: Taken): number => taken.running_seconds + taken.paused_seconds;
  return {
    sandboxes: new Set(all.map((taken) => taken.sandbox_id)).size, running_seconds: sum((t) => t.running_seconds), paused_seconds: sum((t) => t.paused_seconds),
    cpu_seconds: 0, memory_mb_seconds: 0, allocated_cpu_seconds: sum((t) => t.running_seconds * t.cpu), allocated_memory_mb_seconds: sum((t) => held(t) * t.memory_mb),
    allocated_disk_gb_seconds: sum((t) => held(t) * t.disk_gb), egress_bytes: 0,
  };
}

/** What lies in the time that a query names, in the order that it asks for. */
function past(all: Fields[], time: string, query: URLSearchParams): Fields[] {
  const bound = (name: string, none: number): number => (query.get(name) === null ? none : Date.parse(query.get(name) as string));
  const from = bound("from", -Infinity);
  const to = bound("to", Infinity);
  const found = all.filter((one) => Date.parse(String(one[time])) >= from && Date.parse(String(one[time])) < to);
  return query.get("order") === "asc" ? found : found.reverse();
}

/** Whether members have one of the words that the query's parameters of their names have, where they are given. */
function has(one: Fields, query: URLSearchParams, ...names: (string | [parameter: string, member: string])[]): boolean {
  return names.every((name) => {
    const [parameter, member] = typeof name === "string" ? [name, name] : name;
    const words = query.get(parameter);
    return words === null || words.split(",").includes(String(one[member]));
  });
}
