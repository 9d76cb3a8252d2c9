import { Client, type ClientOptions } from "./client.js";
import { type Feed, type FollowOptions, type HistoryOptions, type Reset, followFeed, listFeed } from "./feed.js";
import type * as model from "./generated/model.js";
import { type List, joined } from "./list.js";

/** Something that happened to a sandbox, a job or a session. The members of `data` are as the server names them. */
export type ProjectEvent = model.ProjectEvent;

/** A newer server may have further types. */
export type ProjectEventType = "status" | "oom" | "disk_full" | "job_status" | "session_status" | (string & {});

interface EventFields {
  /** Only those; default: all. */
  types?: ProjectEventType | ProjectEventType[];
}

export type ListEventsOptions = HistoryOptions & EventFields;
export type FollowEventsOptions = FollowOptions & EventFields;

/** What happens in the key's project. The server keeps it for 24 hours. Reading it is no activity of any sandbox. */
export const Events = {
  /** What happened, oldest first. Await the list, or loop over it page by page. */
  list(options: ListEventsOptions & ClientOptions = {}): List<ProjectEvent> {
    return listFeed(feedOf(options), options);
  },

  /**
   * Yields what happened, from the oldest that is kept or after an id, and then what happens, until the loop is left or the signal fires. A
   * connection that breaks is opened again after the last event that came, without loss or doubling, for some 45 s in a row; then it is an
   * error with reason `stream_broken`, `unavailable` or `connection_failed`. Where events after the id are no longer kept, `reset` comes first.
   */
  follow(options: FollowEventsOptions & ClientOptions = {}): AsyncGenerator<ProjectEvent | Reset> {
    return followFeed(feedOf(options), options);
  },
};

function feedOf(options: EventFields & ClientOptions): Feed<ProjectEvent> {
  return { client: new Client(options), path: "/v1/events", query: { types: joined(options.types) }, what: "the events" };
}
