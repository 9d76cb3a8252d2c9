import { delay } from "./abort.js";
import { type Client } from "./client.js";
import { CaySandboxError } from "./errors.js";
import type * as model from "./generated/model.js";
import { List, pageOf } from "./list.js";
import { camelize } from "./names.js";
import { backoff, retryDelay } from "./retry.js";
import { errorEvent, eventObject, openEvents } from "./sse.js";
import type { Abortable } from "./types.js";

/** What a sandbox used at one moment. */
export type MetricsSample = model.Sample;

export interface Metrics {
  items: MetricsSample[];
  intervalSeconds: number;
}

export interface MetricsOptions extends Abortable {
  /** Default: an hour ago. */
  from?: Date | string;
  /** Default: now. */
  to?: Date | string;
  limit?: number;
}

/** Something that happened to a sandbox: lifecycle, oom, denied egress. */
export type SandboxEvent = model.SandboxEvent;

/** What boot, the agent or the installation of packages said. */
export type LogEntry = model.LogEntry;

/** Older entries are no longer kept: what follows does not begin where it was asked to. */
export interface Reset {
  type: "reset";
}

export interface FollowOptions extends Abortable {
  /** The id after which to begin. */
  after?: string;
}

export interface HistoryOptions extends FollowOptions {
  /** Items of a page. */
  limit?: number;
}

const maxReconnects = 8; // in a row
const lastStatuses = new Set(["TERMINATED", "FAILED"]);

/** @internal What can be seen of a sandbox from outside. */
export class Observe {
  readonly #client: Client;
  readonly #sandbox: string;

  constructor(client: Client, sandbox: string) {
    this.#client = client;
    this.#sandbox = sandbox;
  }

  async metrics(options: MetricsOptions): Promise<Metrics> {
    const at = (time: Date | string | undefined): string | undefined => (time instanceof Date ? time.toISOString() : time);
    const answer = await this.#client.json<Metrics & { items: MetricsSample[] | null }>({
      method: "GET", path: `${this.#sandbox}/metrics`, query: { from: at(options.from), to: at(options.to), limit: options.limit }, signal: options.signal,
    });
    return { ...answer, items: answer.items ?? [] };
  }

  history<T>(kind: "events" | "logs", options: HistoryOptions): List<T> {
    return new List(async (cursor) => pageOf(await this.#client.json<{ items: T[] | null; nextCursor: string | null }>({
      method: "GET", path: `${this.#sandbox}/${kind}`, query: { after: cursor ?? options.after, limit: options.limit }, signal: options.signal,
    })));
  }

  /** Yields what there is and what comes, over broken connections, until the sandbox has ended. */
  async *follow<T extends { id: string }>(kind: "events" | "logs", options: FollowOptions): AsyncGenerator<T | Reset> {
    let last = options.after;
    let over = false;
    for (let failures = 0; ; ) {
      let failure: unknown = new CaySandboxError(`GET ${this.#sandbox}/${kind}: the stream ended`, { reason: "stream_broken" });
      try {
        const request = { method: "GET", path: `${this.#sandbox}/${kind}`, query: { follow: true, after: last }, signal: options.signal };
        for await (const event of openEvents(this.#client, request)) {
          failures = 0;
          if (event.event === "reset") {
            yield { type: "reset" };
            continue;
          }
          if (event.event === "error") throw errorEvent(eventObject(event), `the ${kind}`);
          if (kind === "logs" && event.event !== "log") continue; // of a newer server
          const item = camelize<T & { type?: string; data?: Record<string, unknown> }>(eventObject(event));
          last = event.id ?? item.id;
          over = kind === "events" && lastStatuses.has(String(item.data?.["status"] ?? ""));
          yield item;
        }
        if (over || (await this.#ended(options.signal))) return;
      } catch (error) {
        failure = error;
      }
      const known = failure instanceof CaySandboxError && (failure.reason === "stream_broken" || retryDelay(failure, 0) !== undefined);
      if (!known || ++failures > maxReconnects) throw failure;
      await delay(backoff(failures - 1), options.signal);
    }
  }

  async #ended(signal: AbortSignal | undefined): Promise<boolean> {
    const { status } = await this.#client.json<{ status: string }>({ method: "GET", path: this.#sandbox, signal });
    return lastStatuses.has(status);
  }
}
