import { Client, type ClientOptions } from "./client.js";
import type * as model from "./generated/model.js";
import { List, type PastFields, pageOf, pastQuery } from "./list.js";

/** A request that changed something, or that was refused for who asked. Its body, its query and its key are never in it. */
export type AuditEntry = model.AuditEntry;

export interface ListAuditOptions extends PastFields {
  keyId?: string;
  /** The id of an operation in the OpenAPI document, such as `create-sandbox`. */
  action?: string;
  /** The id of what was asked about, or made. */
  object?: string;
}

/** Who changed what, and who was refused. What works inside of sandboxes is no part of it; see `History`. */
export const Audit = {
  /**
   * Entries of the key's project, newest first; they are there within about a second. Await the list, or loop over it page by page. It
   * needs a key with the scope admin; otherwise it is a 403 `forbidden`.
   */
  list(options: ListAuditOptions & ClientOptions = {}): List<AuditEntry> {
    const client = new Client(options);
    const { keyId, action, object, signal } = options;
    return new List(async (cursor) => pageOf(await client.json<{ items: AuditEntry[] | null; nextCursor: string | null }>({
      method: "GET", path: "/v1/audit", query: { ...pastQuery(options, cursor), key_id: keyId, action, object }, signal,
    })));
  },
};
