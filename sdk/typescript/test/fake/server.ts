// An in-process fake of a Cay server: a real HTTP server on loopback that speaks the wire as the API says, and misbehaves on request.
import { type IncomingMessage, type Server, type ServerResponse, createServer } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import type { Duplex } from "node:stream";
import { FakeHistory } from "./history.js";
import { Keyed, Problem, notFound, page, readJson, sendJson, sendProblem } from "./http.js";
import { FakeJobs, hasMetadata } from "./jobs.js";
import { newId } from "./process.js";
import { FakeSandbox } from "./sandbox.js";
import { FakeSessions } from "./sessions.js";
import { ServerSocket } from "./websocket.js";

/** What is done to the next request that matches, instead of or on top of the right thing. */
export interface Fault {
  /** "METHOD /path", matched as a regular expression. */
  match: RegExp;
  /** How often; default once. */
  times?: number;
  /** Answer for the server. */
  answer?: (req: IncomingMessage, res: ServerResponse) => void;
  /** Cut the connection after so many bytes of the body. */
  cutAfter?: number;
  /** Take over a WebSocket. */
  upgrade?: (socket: ServerSocket, req: IncomingMessage) => void;
  /** Extra lines of the answer to a handshake. */
  protocol?: string;
}

export class FakeServer {
  readonly key = `cay_${"0123456789abcdef".repeat(4)}`;
  readonly sandboxes = new Map<string, FakeSandbox>();
  readonly requests: { method: string; url: string; headers: IncomingMessage["headers"] }[] = [];
  readonly faults: Fault[] = [];
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  readonly #tickets = new Map<string, string>();
  readonly #created = new Keyed<FakeSandbox>();
  readonly #history = new FakeHistory();
  readonly #sessions = new FakeSessions(this.#history);
  readonly #jobs = new FakeJobs(this.#sessions, this.#history);
  /** Sees every request as it comes. */
  watch: ((req: IncomingMessage, res: ServerResponse) => void) | undefined;
  /** Milliseconds that a create takes. */
  bootTime = 0;

  private constructor() {
    this.#server = createServer((req, res) => {
      this.#serve(req, res).catch((error: unknown) => {
        sendProblem(res, error instanceof Problem ? error : new Problem(500, "internal", `fake: ${String((error as Error).stack)}`));
      });
    });
    this.#server.on("upgrade", (req, stream, head) => this.#upgrade(req, stream, head));
    this.#server.on("connection", (socket) => {
      this.#sockets.add(socket);
      socket.on("close", () => this.#sockets.delete(socket));
    });
  }

  static async start(): Promise<FakeServer> {
    const fake = new FakeServer();
    await new Promise<void>((resolve) => fake.#server.listen(0, "127.0.0.1", resolve));
    return fake;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async stop(): Promise<void> {
    for (const sandbox of this.sandboxes.values()) sandbox.end();
    this.#jobs.stop();
    this.#sessions.stop();
    this.cutAll();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  /** Cuts every connection, as a server does that ends. */
  cutAll(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  /** Puts an empty file beside a job's program. */
  release(job: string, name: string): void {
    this.#jobs.release(job, name);
  }

  /** How often a request came: "METHOD /path" as a regular expression. */
  count(match: RegExp): number {
    return this.requests.filter((r) => match.test(`${r.method} ${r.url}`)).length;
  }

  #fault(req: IncomingMessage): Fault | undefined {
    const fault = this.faults.find((f) => f.match.test(`${req.method} ${req.url}`));
    if (fault !== undefined && (fault.times = (fault.times ?? 1) - 1) <= 0) this.faults.splice(this.faults.indexOf(fault), 1);
    return fault;
  }

  #authorize(req: IncomingMessage, url: URL): void {
    if (req.headers.authorization === `Bearer ${this.key}` || req.headers["x-api-key"] === this.key) return;
    const ticket = url.searchParams.get("ticket");
    if (ticket !== null) {
      const wanted = this.#tickets.get(ticket);
      this.#tickets.delete(ticket);
      url.searchParams.delete("ticket");
      if (wanted !== undefined && new URL(wanted, url).href === url.href) return;
    }
    throw new Problem(401, "unauthorized", "there is no valid key");
  }

  async #serve(req: IncomingMessage, res: ServerResponse): Promise<void> {
    this.requests.push({ method: req.method ?? "", url: req.url ?? "", headers: req.headers });
    res.setHeader("x-request-id", newId("req"));
    this.watch?.(req, res);
    const fault = this.#fault(req);
    if (fault?.answer !== undefined) {
      req.resume();
      return fault.answer(req, res);
    }
    if (fault?.cutAfter !== undefined) cut(res, fault.cutAfter);
    const url = new URL(req.url ?? "", this.url);
    const parts = url.pathname.split("/").filter((part) => part !== "");
    res.once("finish", () => this.#history.audit(req, res));
    if (parts[0] !== "v1") return this.#plain(res, parts[0] ?? "");
    this.#authorize(req, url);
    const [, group, id, ...rest] = parts;
    if (group === "jobs") return this.#jobs.handle(req, res, id, rest[0], url.searchParams);
    if (group === "sessions") return this.#sessions.handle(req, res, parts.slice(2), url.searchParams);
    if (group === "sandboxes") return this.#sandboxes(req, res, url, id, rest);
    switch (`${req.method} ${group}`) {
      case "GET history":
      case "GET usage":
      case "GET audit":
      case "GET events":
        return this.#history.handle(req, res, group as string, id, url.searchParams);
      case "GET info":
        return sendJson(res, 200, { version: "fake", isolation: "none", enforced: [], features: [], limits: {}, runtimes: [] });
      case "GET runtimes":
        return sendJson(res, 200, { items: [{ name: "python", version: "3", image: "host", exec: ["python3"] }], next_cursor: null });
      case "POST tickets": {
        const { url: wanted } = (await readJson(req)) as { url: string };
        const ticket = newId("tkt");
        this.#tickets.set(ticket, wanted);
        return sendJson(res, 200, { ticket, expires_at: new Date(Date.now() + 60_000).toISOString() });
      }
      default:
        throw notFound("route");
    }
  }

  #plain(res: ServerResponse, name: string): void {
    if (name === "healthz" || name === "readyz") return sendJson(res, 200, { status: "ok" });
    if (name === "openapi.json") return sendJson(res, 200, { openapi: "3.1.0", paths: {} });
    if (name === "docs" || name === "metrics") return void res.writeHead(200, { "content-type": "text/plain" }).end("cay\n");
    throw notFound("route");
  }

  async #sandboxes(req: IncomingMessage, res: ServerResponse, url: URL, id: string | undefined, rest: string[]): Promise<void> {
    const query = url.searchParams;
    if (id === undefined) {
      if (req.method === "GET") return this.#list(res, query);
      const fields = await readJson(req);
      if ([fields["image"], fields["runtime"], fields["snapshot"]].filter((given) => given !== undefined).length > 1) throw new Problem(400, "invalid_request", "image and runtime: give one");
      const sandbox = this.#created.get(req, () => this.#create(fields));
      return sendJson(res, sandbox.status === "READY" ? 201 : 202, sandbox.info);
    }
    const sandbox = this.sandboxes.get(id);
    if (sandbox === undefined) throw notFound("sandbox");
    if (rest.length > 0) return sandbox.handle(req, res, rest, query);
    switch (req.method) {
      case "GET": {
        const until = Date.now() + (query.get("wait_for") === null ? 0 : Number(query.get("wait_seconds") ?? 60)) * 1000;
        while (sandbox.status === "CREATING" && Date.now() < until) await new Promise((resolve) => setTimeout(resolve, 10));
        return sendJson(res, 200, sandbox.info);
      }
      case "PATCH":
        Object.assign(sandbox.fields, await readJson(req));
        return sendJson(res, 200, sandbox.info);
      case "DELETE":
        sandbox.end();
        return sendJson(res, 204);
      default:
        throw new Problem(405, "method_not_allowed", "no such method here");
    }
  }

  #create(fields: Record<string, unknown>): FakeSandbox {
    const id = newId("sbx");
    const use = fields["session_id"] === undefined ? undefined : this.#sessions.find(String(fields["session_id"])).use(id, fields["session_shared"] === true);
    const sandbox = new FakeSandbox(id, fields, use, this.#history);
    this.sandboxes.set(sandbox.id, sandbox);
    if (this.bootTime === 0) sandbox.become("READY");
    else setTimeout(() => sandbox.become("READY"), this.bootTime);
    return sandbox;
  }

  #list(res: ServerResponse, query: URLSearchParams): void {
    const statuses = (query.get("status") ?? "").split(",").flatMap((s) => (s === "active" ? ["CREATING", "READY", "PAUSED"] : s === "" ? [] : [s]));
    const all = [...this.sandboxes.values()].reverse().filter((sandbox) => {
      if (statuses.length > 0 && !statuses.includes(sandbox.status)) return false;
      const session = query.get("session_id");
      return (session === null || sandbox.fields["session_id"] === session) && hasMetadata(sandbox.fields, query);
    });
    sendJson(res, 200, page(all.map((sandbox) => sandbox.info), query));
  }

  #upgrade(req: IncomingMessage, stream: Duplex, head: Buffer): void {
    this.requests.push({ method: req.method ?? "", url: req.url ?? "", headers: req.headers });
    const url = new URL(req.url ?? "", this.url);
    try {
      const fault = this.#fault(req);
      this.#authorize(req, url);
      const [, , id, route] = url.pathname.split("/").filter((part) => part !== "");
      const sandbox = this.sandboxes.get(id ?? "");
      if (sandbox === undefined) throw notFound("sandbox");
      if (sandbox.ended) throw new Problem(410, "gone", "the sandbox has ended");
      const socket = new ServerSocket(req, stream, head, fault?.protocol);
      if (fault?.upgrade !== undefined) fault.upgrade(socket, req);
      else sandbox.live(socket, route ?? "", url.searchParams);
    } catch (error) {
      const problem = error as Problem;
      const body = JSON.stringify({ reason: problem.reason, detail: problem.message, status: problem.status });
      stream.end(`HTTP/1.1 ${problem.status} Refused\r\nContent-Type: application/problem+json\r\nContent-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`);
    }
  }
}

/** Lets so many bytes of an answer's body through, then cuts the connection. */
function cut(res: ServerResponse, after: number): void {
  let left = after;
  let over = false;
  const write = res.write.bind(res) as (chunk: Uint8Array) => boolean;
  const through = (chunk: unknown): boolean => {
    if (over) return true;
    const data = Buffer.from(chunk as string);
    const some = data.subarray(0, left);
    left -= some.length;
    if (left > 0) return write(some);
    (write as (chunk: Uint8Array, done: () => void) => boolean)(some, () => res.socket?.destroy());
    over = true;
    return true;
  };
  res.write = through as typeof res.write;
  const end = res.end.bind(res);
  res.end = ((chunk?: unknown) => {
    if (chunk !== undefined && chunk !== null) {
      if (!res.hasHeader("content-length")) res.setHeader("content-length", Buffer.byteLength(chunk as string));
      through(chunk);
      return res;
    }
    return end();
  }) as typeof res.end;
}
