import type { Client } from "./client.js";
import { type Feed, type FollowOptions, type HistoryOptions, type Reset, followFeed, listFeed } from "./feed.js";
import type * as model from "./generated/model.js";
import { type List, rfc3339 } from "./list.js";
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
    const answer = await this.#client.json<Metrics & { items: MetricsSample[] | null }>({
      method: "GET", path: `${this.#sandbox}/metrics`, query: { from: rfc3339(options.from), to: rfc3339(options.to), limit: options.limit }, signal: options.signal,
    });
    return { ...answer, items: answer.items ?? [] };
  }

  history<T extends { id: string }>(kind: "events" | "logs", options: HistoryOptions): List<T> {
    return listFeed(this.#feed<T>(kind, options), options);
  }

  /** Yields what there is and what comes, over broken connections, until the sandbox has ended. */
  follow<T extends { id: string }>(kind: "events" | "logs", options: FollowOptions): AsyncGenerator<T | Reset> {
    return followFeed(this.#feed<T>(kind, options), options);
  }

  #feed<T extends { id: string }>(kind: "events" | "logs", options: Abortable): Feed<T> {
    return {
      client: this.#client, path: `${this.#sandbox}/${kind}`, what: `the ${kind}`,
      isEntry: kind === "logs" ? (event) => event === "log" : undefined,
      hasEnded: async (last: (T & { data?: Record<string, unknown> }) | undefined) => lastStatuses.has(String(last?.data?.["to"])) || (await this.#ended(options.signal)),
    };
  }

  async #ended(signal: AbortSignal | undefined): Promise<boolean> {
    const { status } = await this.#client.json<{ status: string }>({ method: "GET", path: this.#sandbox, signal });
    return lastStatuses.has(status);
  }
}
