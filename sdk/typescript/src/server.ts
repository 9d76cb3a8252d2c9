import { Client, type ClientOptions } from "./client.js";
import { List, pageOf } from "./list.js";
import type { Abortable, Runtime, ServerInfo, SnapshotInfo, Ticket } from "./types.js";

/** The server itself: what it is, whether it is well, and what belongs to no sandbox. */
export class Server {
  readonly #client: Client;

  constructor(options: ClientOptions = {}) {
    this.#client = new Client(options);
  }

  /** Version, features, limits, runtimes and isolation. */
  info(options: Abortable = {}): Promise<ServerInfo> {
    return this.#client.json({ method: "GET", path: "/v1/info", signal: options.signal });
  }

  runtimes(options: Abortable = {}): List<Runtime> {
    return new List(async (cursor) => pageOf(await this.#client.json<{ items: Runtime[] | null; nextCursor: string | null }>({
      method: "GET", path: "/v1/runtimes", query: { cursor }, signal: options.signal,
    })));
  }

  snapshots(options: Abortable = {}): List<SnapshotInfo> {
    return new List(async (cursor) => pageOf(await this.#client.json<{ items: SnapshotInfo[] | null; nextCursor: string | null }>({
      method: "GET", path: "/v1/snapshots", query: { cursor }, signal: options.signal,
    })));
  }

  async deleteSnapshot(id: string, options: Abortable = {}): Promise<void> {
    await this.#client.discard({ method: "DELETE", path: `/v1/snapshots/${encodeURIComponent(id)}`, signal: options.signal });
  }

  /** A ticket for one GET, stream or WebSocket of a browser: append it as ?ticket=. It is good once, for 60 s. */
  createTicket(url: string, options: Abortable = {}): Promise<Ticket> {
    return this.#client.json({ method: "POST", path: "/v1/tickets", json: { method: "GET", url }, signal: options.signal });
  }

  /** Whether the server runs. */
  async health(options: Abortable = {}): Promise<{ status: string }> {
    return await this.#client.json({ method: "GET", path: "/healthz", signal: options.signal });
  }

  /** Whether it can take work; otherwise an error with status 503, whose body says what is not ready. */
  async ready(options: Abortable = {}): Promise<{ status: string }> {
    return await this.#client.json({ method: "GET", path: "/readyz", signal: options.signal, repeatable: false });
  }

  /** Its own metrics, in Prometheus's text format. */
  metrics(options: Abortable = {}): Promise<string> {
    return this.#text("/metrics", options);
  }

  /** The OpenAPI document. */
  openapi(options: Abortable = {}): Promise<Record<string, unknown>> {
    return this.#client.json({ method: "GET", path: "/openapi.json", signal: options.signal, raw: true });
  }

  /** The document as a page to read. */
  docs(options: Abortable = {}): Promise<string> {
    return this.#text("/docs", options);
  }

  async #text(path: string, options: Abortable): Promise<string> {
    return await (await this.#client.send({ method: "GET", path, signal: options.signal })).text();
  }
}
