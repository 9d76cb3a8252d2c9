// What the routes of the fake answer with.
import type { IncomingMessage, ServerResponse } from "node:http";

/** An answer that is a problem document. */
export class Problem extends Error {
  readonly status: number;
  readonly reason: string;
  readonly headers: Record<string, string>;
  /** Members of the document beyond those that each has. */
  readonly more: Record<string, unknown>;

  constructor(status: number, reason: string, detail: string, headers: Record<string, string> = {}, more: Record<string, unknown> = {}) {
    super(detail);
    this.status = status;
    this.reason = reason;
    this.headers = headers;
    this.more = more;
  }
}

export const notFound = (what: string): Problem => new Problem(404, "not_found", `${what} does not exist`);

/** What was answered with a body of JSON. */
export const answers = new WeakMap<ServerResponse, unknown>();

export function sendJson(res: ServerResponse, status: number, body?: unknown): void {
  answers.set(res, body);
  if (body === undefined) res.writeHead(status).end();
  else res.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
}

export function sendProblem(res: ServerResponse, problem: Problem): void {
  if (res.headersSent) {
    res.destroy();
    return;
  }
  answers.set(res, { reason: problem.reason });
  res.writeHead(problem.status, { "content-type": "application/problem+json", ...problem.headers });
  res.end(JSON.stringify({
    type: `urn:cay:problem:${problem.reason}`, title: problem.reason, status: problem.status, detail: problem.message, reason: problem.reason,
    request_id: String(res.getHeader("x-request-id")), ...problem.more,
  }));
}

export async function readBody(req: IncomingMessage): Promise<Buffer> {
  const parts: Buffer[] = [];
  for await (const part of req) parts.push(part as Buffer);
  return Buffer.concat(parts);
}

export async function readJson(req: IncomingMessage): Promise<Record<string, unknown>> {
  const body = await readBody(req);
  if (body.length === 0) return {};
  if (req.headers["content-type"] !== "application/json") throw new Problem(415, "unsupported_media_type", "the body is no application/json");
  return JSON.parse(body.toString()) as Record<string, unknown>;
}

/** What requests made, by their idempotency key. */
export class Keyed<T> {
  readonly #made = new Map<string, T>();

  get(req: IncomingMessage, make: () => T): T {
    const key = req.headers["idempotency-key"] as string | undefined;
    const known = key === undefined ? undefined : this.#made.get(key);
    if (known !== undefined) return known;
    const made = make();
    if (key !== undefined) this.#made.set(key, made);
    return made;
  }
}

/** The page of a list that a query asks for. */
export function page(all: unknown[], query: URLSearchParams): { items: unknown[]; next_cursor: string | null } {
  const at = Number(query.get("cursor") ?? 0);
  const limit = Number(query.get("limit") ?? 50);
  return { items: all.slice(at, at + limit), next_cursor: at + limit < all.length ? String(at + limit) : null };
}

/** A stream of server-sent events that respects a slow reader. */
export class EventStream {
  readonly #res: ServerResponse;
  /** Fires when the client has gone. */
  readonly gone: Promise<void>;
  isGone = false;

  constructor(res: ServerResponse) {
    this.#res = res;
    this.gone = new Promise((resolve) => res.on("close", () => {
      this.isGone = true;
      resolve();
    }));
    res.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
    res.flushHeaders();
  }

  async send(event: string, data: unknown, id?: string | number): Promise<void> {
    if (this.isGone) return;
    const text = `${id === undefined ? "" : `id: ${id}\n`}event: ${event}\ndata: ${JSON.stringify(data)}\n\n`;
    if (!this.#res.write(text)) await Promise.race([new Promise((resolve) => this.#res.once("drain", resolve)), this.gone]);
  }

  end(): void {
    this.#res.end();
  }
}
