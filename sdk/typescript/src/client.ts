import { anySignal, delay } from "./abort.js";
import { type Content, pieces, streamOf, toBytes } from "./bytes.js";
import { CaySandboxError, abortError, errorOf, invalidArgument, throwIfAborted } from "./errors.js";
import { camelize } from "./names.js";
import { newIdempotencyKey, retryDelay } from "./retry.js";

/** How to reach a server. What is left out comes from the environment. */
export interface ClientOptions {
  /** Base address; default `CAY_URL`, else `http://127.0.0.1:8080`. */
  url?: string | undefined;
  /** API key; default `CAY_API_KEY`. */
  apiKey?: string | undefined;
  /** Another fetch, such as one with a proxy. */
  fetch?: typeof fetch | undefined;
  /** How often a request that is safe to repeat is repeated; default 3. */
  maxRetries?: number | undefined;
  /** Seconds that one attempt may take until its answer begins; default 60. What waits for a command has no such limit. */
  requestTimeout?: number | undefined;
}

export type Query = Record<string, string | number | boolean | null | undefined>;

/** One request. The path is below the base address, with its segments escaped. */
export interface RequestOptions {
  method: string;
  path: string;
  query?: Query | undefined;
  /** More of the query, escaped already. */
  rawQuery?: string | undefined;
  headers?: Record<string, string | undefined> | undefined;
  json?: unknown;
  body?: Content | undefined;
  /** Makes a body that can be sent again. */
  makeBody?: (() => Content) | undefined;
  signal?: AbortSignal | undefined;
  /** true: a POST gets a key of the SDK's own, so that it can be repeated. */
  idempotent?: boolean | undefined;
  idempotencyKey?: string | undefined;
  /** A POST that needs no key to be safe. */
  repeatable?: boolean | undefined;
  /** Seconds until the answer begins; null: no limit. */
  timeout?: number | null | undefined;
  /** Keep the member names of a JSON answer. */
  raw?: boolean | undefined;
}

/** The connection to one server with one key: addresses, authorization, retries and errors. It knows nothing of sandboxes. */
export class Client {
  readonly url: string;
  readonly maxRetries: number;
  readonly #apiKey: string | undefined; // private, so that no inspection or log shows it
  readonly #fetch: typeof fetch;
  readonly #requestTimeout: number;

  constructor(options: ClientOptions = {}) {
    const raw = options.url ?? environment("CAY_URL") ?? "http://127.0.0.1:8080";
    let url: URL;
    try {
      url = new URL(raw);
    } catch {
      throw invalidArgument(`the server's address is no URL: ${raw}`);
    }
    if (url.protocol !== "http:" && url.protocol !== "https:") throw invalidArgument(`the server's address is not http or https: ${raw}`);
    this.url = url.origin + url.pathname.replace(/\/+$/, "");
    this.#apiKey = options.apiKey ?? environment("CAY_API_KEY");
    this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
    this.maxRetries = Math.max(0, options.maxRetries ?? 3);
    this.#requestTimeout = options.requestTimeout ?? 60;
  }

  /** The headers that authorize a request; for a WebSocket of one's own. */
  authorization(): Record<string, string> {
    return this.#apiKey === undefined ? {} : { authorization: `Bearer ${this.#apiKey}` };
  }

  /** The whole address of a request. */
  address(path: string, query?: Query, rawQuery?: string): string {
    const parts = Object.entries(query ?? {})
      .filter(([, value]) => value !== undefined && value !== null)
      .map(([key, value]) => `${encodeURIComponent(key)}=${encodeURIComponent(String(value))}`);
    if (rawQuery) parts.push(rawQuery);
    return this.url + path + (parts.length > 0 ? `?${parts.join("&")}` : "");
  }

  /** Sends a request and answers a response below 400, repeating it where that is safe. */
  async send(request: RequestOptions): Promise<Response> {
    let key = request.idempotencyKey;
    if (key === undefined && request.idempotent) key = await newIdempotencyKey();
    const safe = isRepeatable(request, key);
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.#attempt(request, key);
      } catch (error) {
        const wait = safe && attempt < this.maxRetries ? retryDelay(error, attempt) : undefined;
        if (wait === undefined) throw error;
        await delay(wait, request.signal);
      }
    }
  }

  /** Sends a request and reads its JSON answer, with members renamed to camelCase. A body that breaks off is repeated as well. */
  async json<T>(request: RequestOptions): Promise<T> {
    return (await this.jsonWithStatus<T>(request)).value;
  }

  async jsonWithStatus<T>(request: RequestOptions): Promise<{ value: T; status: number }> {
    const key = request.idempotencyKey ?? (request.idempotent ? await newIdempotencyKey() : undefined);
    const whole = { ...request, idempotencyKey: key, headers: { accept: "application/json", ...request.headers } };
    for (let attempt = 0; ; attempt++) {
      const response = await this.send(whole);
      try {
        const text = await read(response.text(), request);
        if (text === "") return { value: undefined as T, status: response.status };
        return { value: request.raw ? (parse(text, request) as T) : camelize<T>(parse(text, request)), status: response.status };
      } catch (error) {
        const wait = isRepeatable(request, key) && attempt < this.maxRetries ? retryDelay(error, attempt) : undefined;
        if (wait === undefined) throw error;
        await delay(wait, request.signal);
      }
    }
  }

  /** Sends a request whose answer says nothing. */
  async discard(request: RequestOptions): Promise<number> {
    const response = await this.send(request);
    await response.body?.cancel().catch(() => undefined);
    return response.status;
  }

  /** Sends a request to a server behind this one and answers whatever it says; only problem documents of the API are errors. */
  async passThrough(request: RequestOptions): Promise<Response> {
    return await this.#attempt(request, undefined, (response) => isRefusal(response) && isProblem(response));
  }

  async #attempt(request: RequestOptions, key: string | undefined, isError: (response: Response) => boolean = isRefusal): Promise<Response> {
    throwIfAborted(request.signal);
    const what = `${request.method} ${request.path}`;
    let unreadable: { error: unknown } | undefined;
    const { body, streamed, contentType } = openBody(request, (error) => (unreadable = { error }));
    const headers: Record<string, string> = { ...this.authorization() };
    if (contentType !== undefined) headers["content-type"] = contentType;
    if (key !== undefined) headers["idempotency-key"] = key;
    for (const [name, value] of Object.entries(request.headers ?? {})) {
      if (value !== undefined) headers[name] = value;
    }
    const expiry = new AbortController();
    const seconds = request.timeout === undefined ? this.#requestTimeout : request.timeout;
    let late = false;
    const timer = seconds === null || seconds <= 0 ? undefined : setTimeout(() => {
      late = true;
      expiry.abort();
    }, seconds * 1000);
    try {
      const init: RequestInit & { duplex?: "half" } = { method: request.method, headers, signal: anySignal(request.signal, expiry.signal), redirect: "manual" };
      if (body !== undefined) init.body = body;
      if (streamed) init.duplex = "half";
      const response = await this.#fetch(this.address(request.path, request.query, request.rawQuery), init);
      if (isError(response)) throw await errorOf(response, what);
      return response;
    } catch (error) {
      if (error instanceof CaySandboxError) throw error;
      if (request.signal?.aborted) throw abortError(request.signal);
      if (unreadable !== undefined) throw contentError(unreadable.error, what);
      if (late) throw new CaySandboxError(`${what}: no answer within ${seconds} s`, { reason: "timeout", cause: error });
      throw new CaySandboxError(`${what}: ${reasonOf(error)}`, { reason: "connection_failed", cause: error });
    } finally {
      clearTimeout(timer);
    }
  }
}

/** Redirects count: following one could take the key elsewhere, and would turn a POST into a GET. */
function isRefusal(response: Response): boolean {
  return response.status >= 300 && response.status !== 304;
}

function isProblem(response: Response): boolean {
  return /^application\/problem\+json\b/.test(response.headers.get("content-type") ?? "");
}

function isRepeatable(request: RequestOptions, key: string | undefined): boolean {
  if (request.body !== undefined && isStream(request.body)) return false;
  if (request.repeatable !== undefined) return request.repeatable;
  return ["GET", "HEAD", "PUT", "DELETE"].includes(request.method) || key !== undefined;
}

function isStream(content: Content): boolean {
  return !(typeof content === "string" || content instanceof Uint8Array || content instanceof ArrayBuffer || content instanceof Blob);
}

/** What came of reading the caller's content, which no repetition would mend. */
function contentError(error: unknown, what: string): CaySandboxError {
  if (error instanceof CaySandboxError) return error;
  return new CaySandboxError(`${what}: the content cannot be read: ${reasonOf(error)}`, { reason: "invalid_argument", cause: error });
}

async function* watched(content: Content, failed: (error: unknown) => void): AsyncGenerator<Uint8Array> {
  try {
    yield* pieces(content);
  } catch (error) {
    failed(error);
    throw error;
  }
}

function openBody(request: RequestOptions, failed: (error: unknown) => void): { body?: BodyInit; streamed?: boolean; contentType?: string } {
  if (request.json !== undefined) return { body: JSON.stringify(request.json), contentType: "application/json" };
  const content = request.makeBody?.() ?? request.body;
  if (content === undefined) return {};
  const contentType = "application/octet-stream";
  if (content instanceof Blob) return { body: content, contentType };
  if (isStream(content)) return { body: streamOf(watched(content, failed)), streamed: true, contentType };
  return { body: toBytes(content as Uint8Array) as unknown as BodyInit, contentType };
}

/** Reads a body, with the errors of a broken connection made the SDK's own. */
export async function read<T>(body: Promise<T>, request: { method: string; path: string; signal?: AbortSignal | undefined }): Promise<T> {
  try {
    return await body;
  } catch (error) {
    throw brokenBody(error, request);
  }
}

export function brokenBody(error: unknown, request: { method: string; path: string; signal?: AbortSignal | undefined }): CaySandboxError {
  if (error instanceof CaySandboxError) return error;
  if (request.signal?.aborted) return abortError(request.signal);
  return new CaySandboxError(`${request.method} ${request.path}: the answer broke off: ${reasonOf(error)}`, { reason: "stream_broken", cause: error });
}

function parse(text: string, request: RequestOptions): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new CaySandboxError(`${request.method} ${request.path}: the answer is no JSON`, { reason: "invalid_response", body: text.slice(0, 1024), cause: error });
  }
}

/** What went wrong, from the innermost cause: fetch itself says only "fetch failed". */
export function reasonOf(error: unknown): string {
  let text = String(error instanceof Error ? error.message : error);
  for (let depth = 0; depth < 5 && error instanceof Error && error.cause !== undefined; depth++) {
    error = error.cause;
    const message = error instanceof Error ? error.message || (error as { code?: string }).code : String(error);
    if (message) text = message;
  }
  return text;
}

function environment(name: string): string | undefined {
  try {
    return (globalThis as { process?: { env?: Record<string, string | undefined> } }).process?.env?.[name] || undefined;
  } catch {
    return undefined; // Deno without --allow-env
  }
}
