import { Client, type ClientOptions } from "./client.js";
import type * as model from "./generated/model.js";
import { joined, rfc3339 } from "./list.js";
import type { Abortable } from "./types.js";

const pageSize = 200;

/**
 * What was used, or promised and therefore counted: seconds, seconds times cores (`…CpuSeconds`), times MiB (`…MemoryMbSeconds`) or times GiB
 * (`…DiskGbSeconds`), and bytes.
 */
export type UsageAmounts = model.Amounts;

/** The amounts of a day, a sandbox or a project, or of a combination of them, by the parts of `groupBy`. */
export type UsageItem = model.UsageItem;

export type UsageGroup = "day" | "sandbox" | "project";

export interface UsageReport {
  /** The first day (UTC), as 2026-01-02. */
  from: string;
  /** The last day (UTC); it is counted. */
  to: string;
  groupBy: string[];
  /** By day, project and sandbox. What used nothing is left out. */
  items: UsageItem[];
  /** Of all items. */
  total: UsageAmounts;
}

export interface GetUsageOptions extends Abortable {
  /** The first day (UTC), as 2026-01-02 or as a time of it; default: 29 days before `to`. */
  from?: Date | string;
  /** The last day (UTC): 2026-01-02, which is counted whole, or a time, of which the day just before it is the last; default: today. */
  to?: Date | string;
  /** Default: day. */
  groupBy?: UsageGroup | UsageGroup[];
  /** Of one sandbox. */
  sandboxId?: string;
  /** Of every project, which needs a key with the scope admin; otherwise it is a 403 `forbidden`. */
  allProjects?: boolean;
}

/** What sandboxes took, those of jobs and sessions among them. */
export const Usage = {
  /**
   * What the key's project used in whole days (UTC), in one report however many items it has. A sandbox that runs counts as far as about
   * 30 seconds ago, one that has ended or was paused to the millisecond.
   */
  async get(options: GetUsageOptions & ClientOptions = {}): Promise<UsageReport> {
    const client = new Client(options);
    const { groupBy, sandboxId, allProjects, signal } = options;
    const query = { group_by: joined(groupBy), sandbox_id: sandboxId, all_projects: allProjects, limit: pageSize };
    let days: { from: string | undefined; to: string | undefined } = { from: rfc3339(options.from), to: rfc3339(options.to) };
    const items: UsageItem[] = [];
    for (let cursor: string | undefined; ; ) {
      const { nextCursor, ...page } = await client.json<model.UsageReport>({ method: "GET", path: "/v1/usage", query: { ...query, ...days, cursor }, signal });
      for (const item of page.items) items.push(item);
      if (nextCursor === null) return { ...page, items };
      days = { from: page.from, to: page.to }; // midnight may come between two pages
      cursor = nextCursor;
    }
  },
};
