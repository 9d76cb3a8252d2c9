import type { Client } from "./client.js";
import type * as model from "./generated/model.js";
import type * as wire from "./generated/wire.js";
import { List, pageOf } from "./list.js";
import { defined } from "./names.js";
import { type FilePath, FileTree, type ReadFields, type WriteFields, modeOf, pathQuery } from "./tree.js";
import type { Abortable, FileEntry } from "./types.js";
import { Watch, type WatchOptions } from "./watch.js";

export interface FileOptions extends Abortable {
  /** Whose access and ownership count; default the sandbox's user. */
  user?: string;
}

export type ReadOptions = FileOptions & ReadFields;

export type WriteOptions = FileOptions & WriteFields;

export interface SearchOptions extends FileOptions {
  /** Below which directory; default the workdir. */
  path?: string;
  /** A glob for names. */
  pattern?: string;
  /** Text that files contain; the entries have the `lines` with it. */
  contains?: string;
  /** Items of a page; at most 1000. */
  limit?: number;
}

export type SearchHit = FileEntry & { lines?: { number: number; text: string }[] };

/** A URL that needs no key, and until when it is good. */
export type SignedUrl = model.SignedFile;

/** The files of a sandbox. */
export class Files extends FileTree<FileOptions> {
  readonly #client: Client;
  readonly #sandbox: string;

  /** @internal */
  constructor(client: Client, sandbox: string) {
    super(client, { content: `${sandbox}/files`, list: `${sandbox}/files/list`, archive: `${sandbox}/archive` });
    this.#client = client;
    this.#sandbox = sandbox;
  }

  /** What is at a path; of a symlink, the link itself unless `follow`. */
  stat(path: FilePath, options: FileOptions & { follow?: boolean } = {}): Promise<FileEntry> {
    return this.#client.json({
      method: "GET", path: `${this.#sandbox}/files/stat`, query: { user: options.user, follow: options.follow }, rawQuery: pathQuery("path", path), signal: options.signal,
    });
  }

  /** Whether there is anything at a path. */
  async exists(path: FilePath, options: FileOptions = {}): Promise<boolean> {
    try {
      await this.stat(path, options);
      return true;
    } catch (error) {
      if ((error as { status?: number }).status === 404 && (error as { reason?: string }).reason === "not_found") {
        await this.#client.discard({ method: "GET", path: this.#sandbox, signal: options.signal }); // it is the path that is missing, not the sandbox
        return false;
      }
      throw error;
    }
  }

  mkdir(path: string, options: FileOptions & { mode?: string | number; parents?: boolean } = {}): Promise<FileEntry> {
    return this.#post("mkdir", { path, mode: modeOf(options.mode), parents: options.parents }, options);
  }

  move(from: string, to: string, options: FileOptions & { overwrite?: boolean } = {}): Promise<FileEntry> {
    return this.#post("move", { from, to, overwrite: options.overwrite }, options);
  }

  /** Changes mode, owner or both. `user` is the access that counts. */
  chmod(path: string, change: { mode?: string | number; owner?: string; recursive?: boolean }, options: FileOptions = {}): Promise<FileEntry> {
    return this.#post("chmod", { path, mode: modeOf(change.mode), user: change.owner, recursive: change.recursive }, options);
  }

  /** Joins files into one and removes the parts: the last step of an upload in pieces. */
  compose(sources: string[], path: string, options: FileOptions & { mode?: string | number } = {}): Promise<FileEntry> {
    return this.#post("compose", { sources, path, mode: modeOf(options.mode) }, options);
  }

  search(options: SearchOptions): List<SearchHit> {
    const { signal, ...query } = options;
    return new List(async (cursor) => pageOf(await this.#client.json<{ items: SearchHit[] | null; nextCursor: string | null }>({
      method: "GET", path: `${this.#sandbox}/files/search`, query: { ...query, cursor }, signal,
    })));
  }

  /** Changes below a path as they happen. Awaiting it waits until it is armed; leaving the loop ends it. */
  watch(path: FilePath, options: WatchOptions = {}): Watch {
    return new Watch(this.#client, {
      method: "GET", path: `${this.#sandbox}/files/watch`, query: { recursive: options.recursive, user: options.user }, rawQuery: pathQuery("path", path), signal: options.signal,
    });
  }

  /** A URL that reads or writes one file without a key, for a time. */
  sign(method: "GET" | "PUT", path: string, options: FileOptions & { ttlSeconds?: number; maxBytes?: number } = {}): Promise<SignedUrl> {
    const fields = defined<wire.SignRequest>({ method, path, user: options.user, ttl_seconds: options.ttlSeconds, max_bytes: options.maxBytes });
    return this.#client.json({ method: "POST", path: `${this.#sandbox}/files/sign`, json: fields, signal: options.signal, idempotent: true });
  }

  #post(operation: string, fields: Record<string, unknown>, options: FileOptions): Promise<FileEntry> {
    return this.#client.json({
      method: "POST", path: `${this.#sandbox}/files/${operation}`, query: { user: options.user }, json: defined(fields), signal: options.signal, idempotent: true,
    });
  }
}
