import { delay } from "./abort.js";
import type { Client, Query } from "./client.js";
import { CaySandboxError } from "./errors.js";
import { List, pageOf } from "./list.js";
import { camelize } from "./names.js";
import { backoff, retryDelay } from "./retry.js";
import { errorEvent, eventObject, openEvents } from "./sse.js";
import type { Abortable } from "./types.js";

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

/** @internal Entries of the server in their order, that are listed or followed by the id of the last one seen. */
export interface Feed<T> {
  client: Client;
  path: string;
  query?: Query | undefined;
  /** What it holds, for messages. */
  what: string;
  /** Whether an event of its stream is an entry; default: each is. */
  isEntry?: ((event: string) => boolean) | undefined;
  /** Whether nothing follows the last entry that came, asked when a stream has ended; default: something always may. */
  hasEnded?: ((last: T | undefined) => Promise<boolean>) | undefined;
  maxReconnects?: number | undefined;
}

const maxReconnects = 20; // in a row, without an entry in between: some 45 s, which a restart of the server is within
const steady = 60_000; // milliseconds that only a connection lasts on which the server said something, if no more than that it is there

/** @internal The entries that there are. */
export function listFeed<T>(feed: Feed<T>, options: HistoryOptions): List<T> {
  return new List(async (cursor) => pageOf(await feed.client.json<{ items: T[] | null; nextCursor: string | null }>({
    method: "GET", path: feed.path, query: { ...feed.query, after: cursor ?? options.after, limit: options.limit }, signal: options.signal,
  })));
}

/** @internal Yields what there is and what comes, over broken connections and restarts of the server, without a gap that it does not name. */
export async function* followFeed<T extends { id: string }>(feed: Feed<T>, options: FollowOptions): AsyncGenerator<T | Reset> {
  const { client, path } = feed;
  let after = options.after;
  let last: T | undefined;
  for (let failures = 0; ; ) {
    let failure: unknown = new CaySandboxError(`GET ${path}: the stream ended`, { reason: "stream_broken" });
    let opened = Infinity;
    try {
      const request = { method: "GET", path, query: { ...feed.query, follow: true, after }, signal: options.signal };
      for await (const event of openEvents(client, request, () => (opened = Date.now()))) {
        if (event.event === "error") throw errorEvent(eventObject(event), feed.what);
        failures = 0;
        if (event.event === "reset") {
          after = undefined; // a connection that breaks now has nothing more to say of it
          yield { type: "reset" };
          continue;
        }
        if (feed.isEntry?.(event.event) === false) continue; // of a newer server
        last = camelize<T>(eventObject(event));
        after = event.id ?? last.id;
        yield last;
      }
      if (await feed.hasEnded?.(last)) return;
    } catch (error) {
      failure = error;
    }
    if (Date.now() - opened > steady) failures = 0;
    const wait = reconnectDelay(failure, failures);
    if (wait === undefined || ++failures > (feed.maxReconnects ?? maxReconnects)) throw failure;
    await delay(wait, options.signal);
  }
}

/** Milliseconds after which another connection may go on; undefined where none would. */
function reconnectDelay(failure: unknown, attempt: number): number | undefined {
  const goesAway = failure instanceof CaySandboxError && failure.status === 0 && failure.reason === "unavailable"; // said by the stream itself
  return goesAway ? backoff(attempt) : retryDelay(failure, attempt);
}
