import type { Client } from "./client.js";
import { runCode, runCodeStream } from "./code.js";
import type * as model from "./generated/model.js";
import { List, pageOf } from "./list.js";
import { defined } from "./names.js";
import type { Abortable, CodeEvent, CodeOptions, CodeResult } from "./types.js";

/** A language whose state lasts from one run to the next: variables, imports, functions. */
export type ContextInfo = model.CodeContext;

export interface CreateContextOptions extends Abortable {
  /** Default python. */
  language?: string;
  cwd?: string;
  user?: string;
  env?: Record<string, string>;
}

/** What identifies a context: its id, or what {@link Contexts.create} answered. */
export type ContextRef = string | { id: string };

const idOf = (context: ContextRef): string => (typeof context === "string" ? context : context.id);

/** The contexts of a sandbox. Runs in one context wait for each other. */
export class Contexts {
  readonly #client: Client;
  readonly #sandbox: string;

  /** @internal */
  constructor(client: Client, sandbox: string) {
    this.#client = client;
    this.#sandbox = sandbox;
  }

  create(options: CreateContextOptions = {}): Promise<ContextInfo> {
    const { signal, ...fields } = options;
    return this.#client.json({ method: "POST", path: `${this.#sandbox}/contexts`, json: defined(fields), signal, idempotent: true });
  }

  list(options: Abortable = {}): List<ContextInfo> {
    return new List(async (cursor) => pageOf(await this.#client.json<{ items: ContextInfo[] | null }>({
      method: "GET", path: `${this.#sandbox}/contexts`, query: { cursor }, signal: options.signal,
    })));
  }

  get(context: ContextRef, options: Abortable = {}): Promise<ContextInfo> {
    return this.#client.json({ method: "GET", path: this.#path(context), signal: options.signal });
  }

  async delete(context: ContextRef, options: Abortable = {}): Promise<void> {
    await this.#client.discard({ method: "DELETE", path: this.#path(context), signal: options.signal });
  }

  /** Stops what runs in the context and keeps its state. */
  interrupt(context: ContextRef, options: Abortable = {}): Promise<ContextInfo> {
    return this.#client.json({ method: "POST", path: `${this.#path(context)}/interrupt`, signal: options.signal, idempotent: true });
  }

  /** Begins anew: the state is gone, the id stays. */
  restart(context: ContextRef, options: Abortable = {}): Promise<ContextInfo> {
    return this.#client.json({ method: "POST", path: `${this.#path(context)}/restart`, signal: options.signal, idempotent: true });
  }

  runCode(context: ContextRef, code: string, options: Omit<CodeOptions, "contextId"> = {}): Promise<CodeResult> {
    return runCode(this.#client, this.#sandbox, code, { ...options, contextId: idOf(context) });
  }

  runCodeStream(context: ContextRef, code: string, options: Omit<CodeOptions, "contextId"> = {}): AsyncGenerator<CodeEvent> {
    return runCodeStream(this.#client, this.#sandbox, code, { ...options, contextId: idOf(context) });
  }

  #path(context: ContextRef): string {
    return `${this.#sandbox}/contexts/${encodeURIComponent(idOf(context))}`;
  }
}
