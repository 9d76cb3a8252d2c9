import { type Client, type RequestOptions } from "./client.js";
import type { Content } from "./bytes.js";
import type * as model from "./generated/model.js";
import type * as wire from "./generated/wire.js";
import { List, pageOf } from "./list.js";
import type { Abortable } from "./types.js";

/** A port of the sandbox that has a URL. */
export type ExposedPort = model.ExposedPort;

export interface PortRequest extends Abortable {
  method?: string;
  headers?: Record<string, string>;
  body?: Content;
}

/** The ports of a sandbox. */
export class Ports {
  readonly #client: Client;
  readonly #sandbox: string;

  /** @internal */
  constructor(client: Client, sandbox: string) {
    this.#client = client;
    this.#sandbox = sandbox;
  }

  /** Gives a port a URL, or changes whether it is public. */
  expose(port: number, options: Abortable & { public?: boolean } = {}): Promise<ExposedPort> {
    return this.#client.json({
      method: "POST", path: `${this.#sandbox}/ports`, json: { port, public: options.public ?? false } satisfies wire.ExposeRequest, signal: options.signal, idempotent: true,
    });
  }

  list(options: Abortable = {}): List<ExposedPort> {
    return new List(async (cursor) => pageOf(await this.#client.json<{ items: ExposedPort[] | null }>({
      method: "GET", path: `${this.#sandbox}/ports`, query: { cursor }, signal: options.signal,
    })));
  }

  /** Takes the URL away and cuts its connections. */
  async close(port: number, options: Abortable = {}): Promise<void> {
    await this.#client.discard({ method: "DELETE", path: `${this.#sandbox}/ports/${port}`, signal: options.signal });
  }

  /**
   * A request to a server in the sandbox, authorized by the API key; the port needs no URL. The answer is the server's own, whatever its
   * status, but errors of Cay are thrown: they are problem documents of this API. Nothing is repeated.
   */
  async fetch(port: number, path: string, options: PortRequest = {}): Promise<Response> {
    const request: RequestOptions = {
      method: options.method ?? "GET",
      path: `${this.#sandbox}/ports/${port}/${path.replace(/^\//, "")}`,
      headers: options.headers,
      body: options.body,
      signal: options.signal,
      timeout: null,
    };
    return await this.#client.passThrough(request);
  }
}
