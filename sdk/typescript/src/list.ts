import type { Query } from "./client.js";
import type { Abortable } from "./types.js";

/** What every list of resources can be asked for. */
export interface ListFields extends Abortable {
  /** All of these must match. */
  metadata?: Record<string, string>;
  createdAfter?: Date | string;
  order?: "asc" | "desc";
  /** Items of a page. */
  limit?: number;
}

/** The query of a page of such a list. */
export function listQuery(options: ListFields, status: string | string[] | undefined, cursor: string | undefined): Query {
  const { createdAfter, order, limit } = options;
  return {
    status: joined(status), created_after: rfc3339(createdAfter), order, limit, cursor,
    ...Object.fromEntries(Object.entries(options.metadata ?? {}).map(([key, value]) => [`metadata.${key}`, value])),
  };
}

/** What every list of what is over can be asked for. */
export interface PastFields extends Abortable {
  /** At or after this. */
  from?: Date | string;
  /** Before this. */
  to?: Date | string;
  /** By time; default desc. */
  order?: "asc" | "desc";
  /** Items of a page, at most 200; default 50. */
  limit?: number;
  /** Of every project, which needs a key with the scope admin; otherwise it is a 403 `forbidden`. */
  allProjects?: boolean;
}

/** The query of a page of such a list. */
export function pastQuery(options: PastFields, cursor: string | undefined): Query {
  const { from, to, order, limit, allProjects } = options;
  return { from: rfc3339(from), to: rfc3339(to), order, limit, cursor, all_projects: allProjects };
}

/** One or several words, as the query has them. */
export function joined(words: string | readonly string[] | undefined): string | undefined {
  return words === undefined ? undefined : [words].flat().join(",");
}

/** A time as the query has it. */
export function rfc3339(time: Date | string | undefined): string | undefined {
  return time instanceof Date ? time.toISOString() : time;
}

/** One page of a list. */
export interface Page<T> {
  items: T[];
  nextCursor: string | null;
}

/**
 * A list of the server that spans pages. Await it for all of its items at once, or loop over it with `for await`, which asks for a page
 * at a time.
 */
export class List<T> implements PromiseLike<T[]>, AsyncIterable<T> {
  readonly #fetchPage: (cursor: string | undefined) => Promise<Page<T>>;

  constructor(fetchPage: (cursor: string | undefined) => Promise<Page<T>>) {
    this.#fetchPage = fetchPage;
  }

  /** One page: the first, or the one at a cursor. */
  page(cursor?: string): Promise<Page<T>> {
    return this.#fetchPage(cursor);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T> {
    let cursor: string | undefined;
    do {
      const page = await this.#fetchPage(cursor);
      yield* page.items;
      cursor = page.nextCursor ?? undefined;
    } while (cursor !== undefined);
  }

  then<A = T[], B = never>(onfulfilled?: ((items: T[]) => A | PromiseLike<A>) | null, onrejected?: ((error: unknown) => B | PromiseLike<B>) | null): Promise<A | B> {
    return this.#all().then(onfulfilled, onrejected);
  }

  async #all(): Promise<T[]> {
    const items: T[] = [];
    for await (const item of this) items.push(item);
    return items;
  }
}

/** A page as the server sends it: a list may be null where it is empty. */
export function pageOf<T>(answer: { items: T[] | null; nextCursor?: string | null }): Page<T> {
  return { items: answer.items ?? [], nextCursor: answer.nextCursor ?? null };
}
