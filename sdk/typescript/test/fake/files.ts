// The files group of the fake, on a temporary directory whose paths are the sandbox's.
import { createHash } from "node:crypto";
import * as fs from "node:fs";
import type { IncomingMessage, ServerResponse } from "node:http";
import { basename, dirname, join } from "node:path";
import { createGunzip, gzipSync } from "node:zlib";
import { createTar, readTar } from "../../src/archive/tar.js";
import { extract, walk } from "../../src/archive/directory.js";
import { EventStream, Problem, notFound, readBody, readJson, sendJson } from "./http.js";

export class FakeFiles {
  readonly #root: string;

  constructor(root: string) {
    this.#root = root;
    for (const dir of ["workspace", "output", "tmp", "home/sandbox"]) fs.mkdirSync(join(root, dir), { recursive: true });
  }

  local(path: string): string {
    if (!path.startsWith("/")) throw new Problem(400, "invalid_request", "path is not absolute");
    if (path.split("/").includes("..")) throw new Problem(422, "unprocessable", "path leads out");
    return join(this.#root, path);
  }

  entry(path: string): Record<string, unknown> {
    const local = this.local(path);
    const stat = fs.lstatSync(local, { throwIfNoEntry: false });
    if (stat === undefined) throw notFound(`path ${path}`);
    const type = stat.isDirectory() ? "directory" : stat.isSymbolicLink() ? "symlink" : "file";
    return {
      path, name: basename(path), type, size: stat.size, mode: (stat.mode & 0o7777).toString(8).padStart(4, "0"), uid: 2000, gid: 2000, user: "sandbox",
      modified_at: stat.mtime.toISOString(), target: type === "symlink" ? fs.readlinkSync(local) : null,
      ...(type === "file" ? { etag: this.#etag(local) } : {}),
    };
  }

  #etag(local: string): string {
    return `"${createHash("sha1").update(fs.readFileSync(local)).digest("hex")}"`;
  }

  async handle(req: IncomingMessage, res: ServerResponse, route: string, query: URLSearchParams): Promise<void> {
    const path = query.get("path") ?? "/workspace";
    switch (`${req.method} ${route}`) {
      case "GET files":
      case "HEAD files":
        return this.#read(req, res, path);
      case "PUT files": {
        const local = this.local(path);
        if (fs.existsSync(local) && req.headers["if-none-match"] === "*") throw new Problem(412, "precondition_failed", "there is a file already");
        if (req.headers["if-match"] !== undefined && (!fs.existsSync(local) || this.#etag(local) !== req.headers["if-match"])) throw new Problem(412, "precondition_failed", "the file is another");
        const body = await readBody(req);
        fs.mkdirSync(dirname(local), { recursive: true });
        fs.writeFileSync(local, body);
        const mode = query.get("mode");
        if (mode !== null) fs.chmodSync(local, parseInt(mode, 8));
        return sendJson(res, 200, this.entry(path));
      }
      case "DELETE files": {
        const entry = this.entry(path);
        const local = this.local(path);
        if (entry["type"] === "directory" && query.get("recursive") !== "true" && fs.readdirSync(local).length > 0) throw new Problem(409, "conflict", "the directory is not empty");
        fs.rmSync(local, { recursive: true });
        return sendJson(res, 204);
      }
      case "GET files/list":
        return this.#list(res, path, query);
      case "GET files/stat":
        return sendJson(res, 200, this.entry(path));
      case "POST files/mkdir": {
        const { path: at, parents, mode } = await readJson(req) as { path: string; parents?: boolean; mode?: string };
        const local = this.local(at);
        if (fs.existsSync(local) && !parents) throw new Problem(409, "already_exists", `${at} exists`);
        fs.mkdirSync(local, { recursive: true, mode: mode === undefined ? 0o755 : parseInt(mode, 8) });
        return sendJson(res, 201, this.entry(at));
      }
      case "POST files/move": {
        const { from, to, overwrite } = await readJson(req) as { from: string; to: string; overwrite?: boolean };
        this.entry(from);
        if (fs.existsSync(this.local(to)) && !overwrite) throw new Problem(409, "already_exists", `${to} exists`);
        fs.renameSync(this.local(from), this.local(to));
        return sendJson(res, 200, this.entry(to));
      }
      case "POST files/chmod": {
        const { path: at, mode } = await readJson(req) as { path: string; mode?: string };
        this.entry(at);
        if (mode !== undefined) fs.chmodSync(this.local(at), parseInt(mode, 8));
        return sendJson(res, 200, this.entry(at));
      }
      case "POST files/compose": {
        const { sources, path: at } = await readJson(req) as { sources: string[]; path: string };
        const parts = sources.map((source) => (this.entry(source), fs.readFileSync(this.local(source))));
        fs.writeFileSync(this.local(at), Buffer.concat(parts));
        for (const source of sources) fs.rmSync(this.local(source));
        return sendJson(res, 200, this.entry(at));
      }
      case "GET files/search":
        return this.#search(res, path, query);
      case "GET files/watch":
        return this.#watch(res, path, query.get("recursive") === "true");
      case "GET archive": {
        const local = this.local(path);
        if (!fs.existsSync(local)) throw notFound(`path ${path}`);
        const parts: Uint8Array[] = [];
        for await (const part of createTar(walk(local))) parts.push(part);
        const tar = Buffer.concat(parts);
        const plain = query.get("format") === "tar";
        res.writeHead(200, { "content-type": plain ? "application/x-tar" : "application/gzip" });
        return void res.end(plain ? tar : gzipSync(tar));
      }
      case "PUT archive":
        return this.#unpack(req, res, path);
      default:
        throw notFound(`route ${route}`);
    }
  }

  #read(req: IncomingMessage, res: ServerResponse, path: string): void {
    const entry = this.entry(path);
    if (entry["type"] === "directory") throw new Problem(422, "unprocessable", `${path} is a directory`);
    const data = fs.readFileSync(this.local(path));
    const etag = this.#etag(this.local(path));
    if (req.headers["if-match"] !== undefined && req.headers["if-match"] !== etag) throw new Problem(412, "precondition_failed", "the file is another");
    const [, first, last] = /^bytes=(\d+)-(\d*)$/.exec(req.headers.range ?? "") ?? [];
    const from = Number(first ?? 0);
    const to = last ? Math.min(Number(last) + 1, data.length) : data.length;
    if (first !== undefined && from >= data.length) throw new Problem(416, "range_not_satisfiable", "the range is beyond the file");
    res.writeHead(first === undefined ? 200 : 206, {
      "content-type": "application/octet-stream", "content-length": to - from, etag, "last-modified": new Date(String(entry["modified_at"])).toUTCString(),
    });
    res.end(req.method === "HEAD" ? undefined : data.subarray(from, to));
  }

  #list(res: ServerResponse, path: string, query: URLSearchParams): void {
    if (this.entry(path)["type"] !== "directory") throw new Problem(422, "unprocessable", `${path} is no directory`);
    const all = this.#below(path, Number(query.get("depth") ?? 1));
    const at = Number(query.get("cursor") ?? 0);
    const limit = Number(query.get("limit") ?? 200);
    sendJson(res, 200, { items: all.slice(at, at + limit), next_cursor: at + limit < all.length ? String(at + limit) : null });
  }

  #below(path: string, depth: number): Record<string, unknown>[] {
    if (depth === 0) return [];
    return fs.readdirSync(this.local(path)).sort().flatMap((name) => {
      const entry = this.entry(`${path === "/" ? "" : path}/${name}`);
      return [entry, ...(entry["type"] === "directory" ? this.#below(String(entry["path"]), depth - 1) : [])];
    });
  }

  #search(res: ServerResponse, path: string, query: URLSearchParams): void {
    const pattern = query.get("pattern");
    const contains = query.get("contains");
    const glob = pattern === null ? undefined : new RegExp(`^${pattern.replace(/[.+^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*").replaceAll("?", ".")}$`);
    const items = this.#below(path, 100).filter((entry) => glob?.test(String(entry["name"])) ?? true).flatMap((entry) => {
      if (contains === null) return [entry];
      if (entry["type"] !== "file") return [];
      const text = fs.readFileSync(this.local(String(entry["path"])), "utf8").split("\n");
      const lines = text.map((line, i) => ({ number: i + 1, text: line })).filter((line) => line.text.includes(contains));
      return lines.length > 0 ? [{ ...entry, lines }] : [];
    });
    sendJson(res, 200, { items, next_cursor: null, truncated: false });
  }

  async #watch(res: ServerResponse, path: string, recursive: boolean): Promise<void> {
    this.entry(path);
    const known = new Map<string, string>();
    const scan = (): Map<string, string> => new Map(this.#below(path, recursive ? 100 : 1).map((e) => [String(e["path"]), `${e["type"]} ${e["etag"] ?? ""}`]));
    for (const [name, state] of scan()) known.set(name, state);
    const events = new EventStream(res);
    const watcher = fs.watch(this.local(path), { recursive: false }, () => void look());
    const timer = setInterval(() => void look(), 20); // what is below is not watched by every Node.js
    const look = async (): Promise<void> => {
      const now = scan();
      for (const [name, state] of now) {
        const before = known.get(name);
        if (before !== state) await events.send("change", { type: before === undefined ? "create" : "write", path: name });
        known.set(name, state);
      }
      for (const name of [...known.keys()].filter((name) => !now.has(name))) {
        known.delete(name);
        await events.send("change", { type: "remove", path: name });
      }
    };
    await events.send("ready", { path });
    await events.gone;
    clearInterval(timer);
    watcher.close();
  }

  async #unpack(req: IncomingMessage, res: ServerResponse, path: string): Promise<void> {
    const body = await readBody(req);
    const source = body[0] === 0x1f ? (async function* () {
      const gunzip = createGunzip();
      gunzip.end(body);
      yield* gunzip as AsyncIterable<Uint8Array>;
    })() : body;
    const local = this.local(path);
    for await (const entry of readTar(body[0] === 0x1f ? source : body)) {
      if (entry.path.split("/").includes("..") || entry.path.startsWith("/")) throw new Problem(422, "unprocessable", `entry ${entry.path} leaves the path`);
    }
    const again = body[0] === 0x1f ? (async function* () {
      const gunzip = createGunzip();
      gunzip.end(body);
      yield* gunzip as AsyncIterable<Uint8Array>;
    })() : body;
    const report = await extract(readTar(again), local);
    sendJson(res, 200, { ...report, skipped: report.skipped.length });
  }
}
