// One sandbox of the fake, and the routes below it.
import * as fs from "node:fs";
import { request as httpRequest, type IncomingMessage, type ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { FakeContext, changes, interpreters, look } from "./code.js";
import { FakeFiles } from "./files.js";
import type { FakeHistory } from "./history.js";
import { EventStream, Keyed, Problem, notFound, readBody, readJson, sendJson } from "./http.js";
import { FakeProcess, type StartFields } from "./process.js";
import type { SessionUse } from "./sessions.js";
import { ServerSocket } from "./websocket.js";

type Fields = Record<string, unknown>;

export class FakeSandbox {
  readonly id: string;
  readonly root = fs.mkdtempSync(join(tmpdir(), "cay-fake-"));
  readonly files = new FakeFiles(this.root);
  readonly processes: FakeProcess[] = [];
  readonly contexts = new Map<string, FakeContext>();
  readonly ports = new Map<number, Fields>();
  readonly sockets = new Set<ServerSocket>();
  readonly createdAt = new Date();
  readonly #history: FakeHistory;
  #since = Date.now(); // when it took the status that it has
  readonly #started = new Keyed<FakeProcess>();
  readonly #use: SessionUse | undefined;
  status = "CREATING";
  fields: Fields;
  expiresAt = new Date(Date.now() + 3_600_000);

  constructor(id: string, fields: Fields, use: SessionUse | undefined, history: FakeHistory) {
    this.id = id;
    this.#history = history;
    this.fields = fields;
    this.#use = use;
    use?.mount(this.root);
  }

  become(status: string): void {
    const from = this.status;
    const seconds = (Date.now() - this.#since) / 1000;
    const { cpu, memory_mb, disk_gb } = this.info as { cpu: number; memory_mb: number; disk_gb: number };
    if (from === "READY" || from === "PAUSED") {
      const paused = from === "PAUSED" ? seconds : 0;
      this.#history.take({ sandbox_id: this.id, running_seconds: seconds - paused, paused_seconds: paused, cpu, memory_mb, disk_gb });
    }
    this.#since = Date.now();
    this.status = status;
    this.#history.event({ sandbox_id: this.id }, "status", { from, to: status, ...(this.ended ? { reason: "deleted" } : {}) });
  }

  get ended(): boolean {
    return this.status === "TERMINATED" || this.status === "FAILED";
  }

  end(): void {
    if (this.ended) return;
    for (const process of this.processes) process.signal("KILL", true);
    for (const context of this.contexts.values()) context.restart();
    for (const socket of this.sockets) socket.cut();
    this.#use?.end();
    fs.rmSync(this.root, { recursive: true, force: true });
    this.become("TERMINATED");
    this.#history.record("sandbox", this.id, this.createdAt, { sandbox_id: this.id, session_id: this.#session, outcome: "deleted", ok: true });
  }

  get #session(): unknown {
    return this.fields["session_id"] ?? null;
  }

  get info(): Fields {
    const f = this.fields;
    return {
      id: this.id, sandbox_id: this.id, status: this.status, status_reason: this.ended ? "deleted" : null, image: f["image"] ?? "host", runtime: f["runtime"] ?? null,
      cpu: f["cpu"] ?? 1, memory_mb: f["memory_mb"] ?? 512, disk_gb: f["disk_gb"] ?? 1, pids: f["pids"] ?? 512, ttl_seconds: f["ttl_seconds"] ?? 3600,
      idle_timeout_seconds: f["idle_timeout_seconds"] ?? null, on_timeout: f["on_timeout"] ?? "terminate", paused_ttl_seconds: 86400, auto_resume: f["auto_resume"] ?? true,
      network: f["network"] ?? [], env: f["env"] ?? {}, metadata: f["metadata"] ?? {}, user: "sandbox", workdir: "/workspace", worker_id: null, runtime_id: null,
      session_id: this.#session, session_shared: f["session_shared"] ?? false, managed_by: null,
      created_at: this.createdAt.toISOString(), ready_at: this.createdAt.toISOString(), expires_at: this.expiresAt.toISOString(), last_active_at: this.createdAt.toISOString(),
      ended_at: this.ended ? new Date().toISOString() : null, detail: null, create_ms: { queue: 0, schedule: 0, boot: 1, total: 1 },
      usage: { cpu_seconds: 0, memory_mb_seconds: 0, peak_memory_mb: 0, disk_mb: 0, egress_bytes: 0 },
    };
  }

  async handle(req: IncomingMessage, res: ServerResponse, parts: string[], query: URLSearchParams): Promise<void> {
    const [group, name, operation] = parts;
    if (group === "events") return this.#events(req, res, query);
    if (this.ended) throw new Problem(410, "gone", "the sandbox has ended");
    if (this.status === "CREATING") throw new Problem(409, "not_ready", "the sandbox is not READY", { "retry-after": "1" });
    if (group === "files" || group === "archive") return this.files.handle(req, res, parts.join("/"), query);
    switch (`${req.method} ${[group, name === undefined ? [] : "*", operation ?? []].flat().join("/")}`) {
      case "POST exec": {
        const fields = await readJson(req);
        return this.#deliver(req, res, this.#started.get(req, () => this.start("exec", fields as unknown as StartFields, { defaultTimeout: 60 })), fields, false);
      }
      case "POST code": {
        const fields = await readJson(req);
        const process = this.#started.get(req, () => this.#code(fields));
        return this.#deliver(req, res, process, fields, true);
      }
      case "POST processes": {
        const fields = await readJson(req);
        const { name, tty, stdin_open: stdinOpen } = fields as { name?: string; tty?: boolean; stdin_open?: boolean };
        const process = this.#started.get(req, () => {
          if (name !== undefined && this.processes.some((p) => p.name === name && p.exit === undefined)) throw new Problem(409, "already_exists", `a process named ${name} runs`);
          return this.start("process", fields as unknown as StartFields, { name: name ?? null, tty: tty ?? false, stdinOpen: stdinOpen ?? false, defaultTimeout: null });
        });
        await new Promise((resolve) => setImmediate(resolve)); // one that cannot start says so at once
        return sendJson(res, 201, process.info);
      }
      case "GET processes":
        return sendJson(res, 200, { items: this.processes.map((p) => p.info), next_cursor: null });
      case "POST contexts": {
        const { language } = (await readJson(req)) as { language?: string };
        const context = new FakeContext(language ?? "python", `${this.root}/workspace`);
        this.contexts.set(context.id, context);
        return sendJson(res, 201, context.info);
      }
      case "GET contexts":
        return sendJson(res, 200, { items: [...this.contexts.values()].map((c) => c.info), next_cursor: null });
      case "POST ports": {
        const { port, public: open } = (await readJson(req)) as { port: number; public?: boolean };
        const before = this.ports.get(port);
        const url = `http://${port}-${this.id.slice(4)}.localhost:8080/`;
        this.ports.set(port, { port, public: open ?? false, url, token: open ? null : `token-${port}`, created_at: before?.["created_at"] ?? new Date().toISOString() });
        return sendJson(res, 201, this.ports.get(port));
      }
      case "GET ports":
        return sendJson(res, 200, { items: [...this.ports.values()], next_cursor: null });
      case "GET metrics":
        return sendJson(res, 200, { items: [{ at: new Date().toISOString(), cpu_cores: 0.1, cpu_seconds: 1, memory_mb: 20, peak_memory_mb: 30, disk_mb: 1, pids: 2, network_rx_bytes: 0, network_tx_bytes: 0 }], interval_seconds: 5 });
      case "GET logs":
        return this.#logs(req, res, query);
      case "GET network":
        return sendJson(res, 200, { allow: this.fields["network"] ?? [], deny: [] });
      case "PUT network":
        this.fields["network"] = await readJson(req);
        return sendJson(res, 200, { allow: this.fields["network"], deny: [] });
      case "POST timeout": {
        const { ttl_seconds: ttl } = (await readJson(req)) as { ttl_seconds: number };
        if (!(ttl > 0)) throw new Problem(400, "invalid_request", "ttl_seconds must be positive");
        this.fields["ttl_seconds"] = ttl;
        this.expiresAt = new Date(Date.now() + ttl * 1000);
        return sendJson(res, 200, this.info);
      }
      case "POST keepalive":
        return sendJson(res, 200, this.info);
      case "POST pause":
        if (this.status === "READY") this.become("PAUSED");
        return sendJson(res, 200, this.info);
      case "POST resume":
        await readJson(req);
        if (this.status === "PAUSED") this.become("READY");
        return sendJson(res, 200, this.info);
    }
    if (group === "contexts" && name !== undefined) return this.#context(req, res, name, operation);
    if (group === "processes" && name !== undefined) return this.#process(req, res, decodeURIComponent(name), operation ?? "", query);
    if (group === "ports" && name !== undefined) return this.#port(req, res, Number(name), parts.slice(2).join("/"));
    throw notFound("route");
  }

  start(
    kind: "exec" | "code" | "process" | "terminal", fields: StartFields,
    options: { name?: string | null; tty?: boolean; stdinOpen?: boolean; defaultTimeout: number | null } & { cwd?: string },
    recorded: Fields = { command: [fields.command].flat().join(" ") },
  ): FakeProcess {
    const cwd = String((fields as unknown as Fields)["cwd"] ?? "/workspace");
    if (!fs.existsSync(this.files.local(cwd))) throw new Problem(422, "unprocessable", `cwd ${cwd} does not exist`);
    const process = new FakeProcess(fields, {
      root: this.root, cwd, env: (this.fields["env"] as Record<string, string> | undefined) ?? {}, name: options.name ?? null, tty: options.tty ?? false,
      stdinOpen: options.stdinOpen ?? false, defaultTimeout: options.defaultTimeout,
    });
    this.processes.push(process);
    // Not before those who listen have made of its end what it is.
    void process.ended().then(() => this.#history.recordProcess(kind, process, { sandbox_id: this.id, session_id: this.#session, ...recorded }));
    return process;
  }

  #code(fields: Fields, stdinOpen = false): FakeProcess {
    const context = fields["context_id"] === undefined ? undefined : this.contexts.get(String(fields["context_id"]));
    if (fields["context_id"] !== undefined && context === undefined) throw notFound("context");
    const language = String(fields["language"] ?? context?.language ?? "python");
    const interpreter = interpreters[language];
    if (interpreter === undefined) throw new Problem(422, "unprocessable", `the image has no ${language}: ${Object.keys(interpreters).join(", ")}`);
    const before = look(this.root);
    const { code, language: _, context_id: __, ...rest } = fields;
    // The process of a run in a context repeats what the context said.
    const process = this.start("code", { ...rest, command: context === undefined ? interpreter(String(code)) : ["cat"] }, { defaultTimeout: 60, stdinOpen: stdinOpen || context !== undefined }, { command: String(code), language });
    let answer: Fields = {};
    void context?.run(String(code)).then((said) => {
      answer = said;
      process.write(Buffer.from(String(said["stdout"])));
      process.closeStdin();
    });
    process.once("ended", () => {
      if (answer["error"]) Object.assign(process.exit as Fields, { exit_code: 1, ok: false });
      process.result = {
        language, context_id: context?.id ?? null, ...changes(this.root, before), results: answer["results"] ?? [], results_truncated: false,
        error: answer["error"] ?? null, execution_count: context?.count ?? 0, context_lost: false,
      };
    });
    return process;
  }

  async #deliver(req: IncomingMessage, res: ServerResponse, process: FakeProcess, fields: Fields, code: boolean): Promise<void> {
    if (req.headers.accept?.includes("text/event-stream")) return this.#stream(res, process, 0, String(fields["encoding"] ?? "utf8"), code);
    await process.ended();
    sendJson(res, 200, process.answer(String(fields["encoding"] ?? "utf8")));
  }

  async #stream(res: ServerResponse, process: FakeProcess, offset: number, encoding: string, code: boolean): Promise<void> {
    const events = new EventStream(res);
    await events.send("start", { process_id: process.id, offset }, offset);
    for await (const { stream, data, offset: at } of process.read(offset)) {
      if (events.isGone) return;
      await events.send(stream, encoding === "base64" ? { data_base64: data.toString("base64") } : { data: data.toString() }, at + data.length);
    }
    await events.send("exit", process.exit, process.size);
    if (code && process.result !== undefined) await events.send("result", process.result);
    events.end();
  }

  async #process(req: IncomingMessage, res: ServerResponse, name: string, operation: string, query: URLSearchParams): Promise<void> {
    const process = this.find(name);
    const offset = Number(query.get("offset") ?? 0);
    switch (`${req.method} ${operation}`) {
      case "GET ":
        return sendJson(res, 200, process.info);
      case "GET stream":
        return this.#stream(res, process, offset, query.get("encoding") ?? "utf8", process.result !== undefined || process.command[1] === "-c");
      case "GET logs": {
        const limit = Number(query.get("limit") ?? 1024 * 1024);
        const out = { stdout: [] as Buffer[], stderr: [] as Buffer[] };
        let at = offset;
        for (const chunk of process.chunks) {
          const data = chunk.data.subarray(Math.max(0, at - chunk.offset), Math.max(0, offset + limit - chunk.offset));
          if (chunk.offset + chunk.data.length <= at || data.length === 0) continue;
          out[chunk.stream].push(data);
          at += data.length;
        }
        const text = query.get("encoding") === "base64" ? { stdout_base64: Buffer.concat(out.stdout).toString("base64"), stderr_base64: Buffer.concat(out.stderr).toString("base64") }
          : { stdout: Buffer.concat(out.stdout).toString(), stderr: Buffer.concat(out.stderr).toString() };
        return sendJson(res, 200, { process_id: process.id, offset, next_offset: at, size: process.size, ...text, gaps: [], lossy: { stdout: false, stderr: false }, status: process.info["status"], exit_code: process.info["exit_code"] });
      }
      case "POST stdin": {
        const body = await readBody(req);
        if (!process.stdinOpen) throw new Problem(409, "conflict", "the process has no open stdin");
        const given = query.get("offset");
        if (given !== null && Number(given) > process.stdinOffset) throw new Problem(409, "conflict", "the offset is beyond what arrived");
        process.write(given === null ? body : body.subarray(process.stdinOffset - Number(given)));
        if (query.get("close") === "true") process.closeStdin();
        return sendJson(res, 200, { stdin_offset: process.stdinOffset });
      }
      case "POST signal": {
        const { signal, tree } = (await readJson(req)) as { signal: string; tree?: boolean };
        if (process.exit !== undefined) throw new Problem(409, "conflict", "the process has ended");
        process.signal(signal, tree ?? false);
        return sendJson(res, 204);
      }
      case "POST resize":
        await readJson(req);
        if (!process.tty) throw new Problem(409, "conflict", "the process has no terminal");
        return sendJson(res, 204);
      case "GET wait": {
        let timer: NodeJS.Timeout | undefined;
        await Promise.race([process.ended(), new Promise((resolve) => (timer = setTimeout(resolve, Number(query.get("timeout_seconds") ?? 60) * 1000)))]);
        clearTimeout(timer);
        return sendJson(res, 200, process.info);
      }
      default:
        throw notFound("route");
    }
  }

  find(name: string): FakeProcess {
    const process = this.processes.find((p) => p.id === name || p.name === name || String(p.info["pid"]) === name);
    if (process === undefined) throw notFound(`process ${name}`);
    return process;
  }

  async #context(req: IncomingMessage, res: ServerResponse, id: string, operation: string | undefined): Promise<void> {
    const context = this.contexts.get(id);
    if (context === undefined) throw notFound("context");
    if (req.method === "DELETE") {
      context.restart();
      this.contexts.delete(id);
      return sendJson(res, 204);
    }
    if (operation === "interrupt") context.interrupt();
    if (operation === "restart") context.restart();
    sendJson(res, 200, context.info);
  }

  #port(req: IncomingMessage, res: ServerResponse, port: number, rest: string): void {
    if (req.method === "DELETE" && rest === "") {
      if (!this.ports.delete(port)) throw notFound("port");
      return sendJson(res, 204);
    }
    const { authorization: _, host: __, ...headers } = req.headers;
    const upstream = httpRequest({ host: "127.0.0.1", port, path: `/${rest}`, method: req.method, headers }, (answer) => {
      res.writeHead(answer.statusCode ?? 502, answer.headers);
      answer.pipe(res);
    });
    upstream.on("error", () => {
      res.writeHead(503, { "content-type": "application/problem+json", "retry-after": "1" });
      res.end(JSON.stringify({ reason: "unavailable", detail: `nothing listens on port ${port} of the sandbox` }));
    });
    req.pipe(upstream);
  }

  async #events(req: IncomingMessage, res: ServerResponse, query: URLSearchParams): Promise<void> {
    return await this.#history.send(req, res, query, (event) => event["sandbox_id"] === this.id, (event) => (event["data"] as Fields)["to"] === "TERMINATED");
  }

  async #logs(_req: IncomingMessage, res: ServerResponse, query: URLSearchParams): Promise<void> {
    const entry = { id: "1", at: this.createdAt.toISOString(), source: "boot", level: "info", message: "the sandbox is up" };
    if (query.get("follow") !== "true") return sendJson(res, 200, { items: [entry], next_cursor: null });
    const events = new EventStream(res);
    if (query.get("after") === null) await events.send("log", entry, "1");
    while (!this.ended && !events.isGone) await Promise.race([this.#history.next(), events.gone]);
    events.end();
  }

  /** A live process: exec, code or terminal. */
  live(socket: ServerSocket, route: string, query: URLSearchParams): void {
    this.sockets.add(socket);
    let process: FakeProcess | undefined;
    const refuse = (problem: unknown): void => {
      const known = problem instanceof Problem ? problem : new Problem(500, "internal", String(problem));
      socket.json({ type: "error", reason: known.reason, detail: known.message });
      socket.close(4000 + known.status);
    };
    const follow = async (started: FakeProcess, offset: number): Promise<void> => {
      process = started;
      socket.json({ type: "started", process_id: started.id, offset, stdin_offset: started.stdinOffset });
      for await (const chunk of started.read(offset)) await socket.binary(chunk.stream === "stdout" ? 1 : 2, chunk.data);
      socket.json({ type: "exit", ...started.exit });
      if (started.result !== undefined) socket.json({ type: "result", ...started.result });
      socket.close(1000);
    };
    const begin = (start: () => FakeProcess, offset = 0): void => {
      try {
        follow(start(), offset).catch(refuse);
      } catch (error) {
        refuse(error);
      }
    };
    socket.onClose = () => {
      this.sockets.delete(socket);
      if (route === "terminal") process?.signal("HUP", true);
    };
    socket.onFrame = ({ opcode, payload }) => {
      if (opcode === 2) return void process?.write(payload);
      if (opcode !== 1) return;
      const message = JSON.parse(payload.toString()) as Fields;
      const { type, tty, cols, rows, ...fields } = message;
      switch (type) {
        case "start":
          return begin(() => route === "code" ? this.#code(fields, true) : this.start("exec", fields as unknown as StartFields, { tty: tty === true, stdinOpen: true, defaultTimeout: 60 }));
        case "close_stdin":
          return process?.closeStdin();
        case "signal":
          return process?.signal(String(message["signal"]), message["tree"] === true);
        case "resize":
          return void [cols, rows];
        case "ping":
          return socket.json({ type: "pong" });
      }
    };
    const attached = query.get("process_id");
    if (attached !== null) begin(() => this.find(attached), Number(query.get("offset") ?? 0));
    else if (route === "terminal") begin(() => this.start("terminal", { command: ["/bin/sh"] }, { tty: true, stdinOpen: true, defaultTimeout: null }));
  }
}
