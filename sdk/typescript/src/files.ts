import { extract, walk, type DownloadReport } from "./archive/directory.js";
import { gunzipIfNeeded, gzip } from "./archive/gzip.js";
import { createTar, readTar } from "./archive/tar.js";
import { type Content, pieces, streamOf } from "./bytes.js";
import { type Client, brokenBody, read } from "./client.js";
import type * as model from "./generated/model.js";
import type * as wire from "./generated/wire.js";
import { List, pageOf } from "./list.js";
import { defined } from "./names.js";
import type { Abortable, FileEntry } from "./types.js";
import { Watch, type WatchOptions } from "./watch.js";

/** An absolute path in the sandbox. A name that is not UTF-8 is given as the entry that a list answered, or percent-encoded. */
export type FilePath = string | { path: string; pathPercent?: string } | { pathPercent: string };

export type ArchiveFormat = "tar" | "tar.gz" | "tar.zst";

export interface FileOptions extends Abortable {
  /** Whose access and ownership count; default the sandbox's user. */
  user?: string;
}

export interface ReadOptions extends FileOptions {
  /** First byte, and how many; default all. */
  offset?: number;
  length?: number;
  /** Fail with precondition_failed when the file is another by now. */
  ifMatch?: string;
}

export interface WriteOptions extends FileOptions {
  /** Octal digits or a number; default: that of the file it replaces, else 0644. */
  mode?: string | number;
  /** Write only over the file with this etag. */
  ifMatch?: string;
  /** Fail with precondition_failed when there is a file already. */
  createOnly?: boolean;
}

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

/** What an upload unpacked; devices, FIFOs and sockets are skipped. */
export type ArchiveReport = model.ArchiveAnswer;

/** The files of a sandbox. */
export class Files {
  readonly #client: Client;
  readonly #sandbox: string;

  /** @internal */
  constructor(client: Client, sandbox: string) {
    this.#client = client;
    this.#sandbox = sandbox;
  }

  /** The whole content. A download that breaks off is an error, never a short file. */
  async read(path: FilePath, options: ReadOptions = {}): Promise<Uint8Array> {
    const request = this.#readRequest("GET", path, options);
    const response = await this.#client.send(request);
    return new Uint8Array(await read(response.arrayBuffer(), request));
  }

  async readText(path: FilePath, options: ReadOptions = {}): Promise<string> {
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(await this.read(path, options));
  }

  /** The content as it comes. Cancelling the stream ends the download. */
  async readStream(path: FilePath, options: ReadOptions = {}): Promise<ReadableStream<Uint8Array>> {
    const request = this.#readRequest("GET", path, options);
    return bodyOf(await this.#client.send(request), request);
  }

  /** Size and etag without the content. */
  async head(path: FilePath, options: FileOptions = {}): Promise<{ size: number; etag: string | null; modifiedAt: Date | null }> {
    const { headers } = await this.#client.send(this.#readRequest("HEAD", path, options));
    const modified = headers.get("last-modified");
    return { size: Number(headers.get("content-length") ?? 0), etag: headers.get("etag"), modifiedAt: modified === null ? null : new Date(modified) };
  }

  /** Writes a file whole: readers see the old or the new one, and an upload that breaks off changes nothing. Directories above are made. */
  write(path: FilePath, content: Content, options: WriteOptions = {}): Promise<FileEntry> {
    return this.#client.json({
      method: "PUT",
      path: `${this.#sandbox}/files`,
      query: { user: options.user, mode: modeOf(options.mode) },
      rawQuery: pathQuery("path", path),
      headers: { "if-match": options.ifMatch, "if-none-match": options.createOnly ? "*" : undefined },
      body: content,
      timeout: null,
      signal: options.signal,
    });
  }

  /** The entries of a directory, with `depth` those below it as well. Await the list, or loop over it page by page. */
  list(path: FilePath, options: FileOptions & { depth?: number; limit?: number } = {}): List<FileEntry> {
    return new List(async (cursor) => pageOf(await this.#client.json<{ items: FileEntry[] | null; nextCursor: string | null }>({
      method: "GET",
      path: `${this.#sandbox}/files/list`,
      query: { user: options.user, depth: options.depth, limit: options.limit, cursor },
      rawQuery: pathQuery("path", path),
      signal: options.signal,
    })));
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

  async remove(path: FilePath, options: FileOptions & { recursive?: boolean } = {}): Promise<void> {
    await this.#client.discard({
      method: "DELETE", path: `${this.#sandbox}/files`, query: { user: options.user, recursive: options.recursive }, rawQuery: pathQuery("path", path), signal: options.signal,
    });
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

  /** Unpacks an archive below a path, which is made. The server tells the format by the first bytes where it is not given. */
  uploadArchive(path: FilePath, archive: Content, options: FileOptions & { format?: ArchiveFormat } = {}): Promise<ArchiveReport> {
    return this.#upload(path, options, () => archive, options.format, isRepeatable(archive));
  }

  /** A directory as an archive, as it comes. Cancelling the stream ends the download; one that breaks off fails while it is read. */
  async downloadArchive(path: FilePath, options: FileOptions & { format?: ArchiveFormat } = {}): Promise<ReadableStream<Uint8Array>> {
    const request = {
      method: "GET", path: `${this.#sandbox}/archive`, query: { format: options.format, user: options.user }, rawQuery: pathQuery("path", path), signal: options.signal,
    };
    return bodyOf(await this.#client.send(request), request);
  }

  /** Copies a local directory into the sandbox in one request. Modes, times and links are kept. */
  uploadDirectory(local: string, path: FilePath, options: FileOptions = {}): Promise<ArchiveReport> {
    return this.#upload(path, options, () => gzip(createTar(walk(local))), "tar.gz", true);
  }

  /**
   * Copies a directory of the sandbox to a local one, which is made. What the sandbox answers cannot write outside of it: an entry that
   * would is an error, and a link that leads out is left out, which the report says.
   */
  async downloadDirectory(path: FilePath, local: string, options: FileOptions = {}): Promise<DownloadReport> {
    const archive = await this.downloadArchive(path, { ...options, format: "tar.gz" });
    return extract(readTar(streamOf(gunzipIfNeeded(archive))), local);
  }

  #upload(path: FilePath, options: FileOptions, makeBody: () => Content, format: ArchiveFormat | undefined, repeatable: boolean): Promise<ArchiveReport> {
    return this.#client.json({
      method: "PUT", path: `${this.#sandbox}/archive`, query: { format, user: options.user }, rawQuery: pathQuery("path", path), makeBody, repeatable, timeout: null, signal: options.signal,
    });
  }

  #post(operation: string, fields: Record<string, unknown>, options: FileOptions): Promise<FileEntry> {
    return this.#client.json({
      method: "POST", path: `${this.#sandbox}/files/${operation}`, query: { user: options.user }, json: defined(fields), signal: options.signal, idempotent: true,
    });
  }

  #readRequest(method: "GET" | "HEAD", path: FilePath, options: ReadOptions): { method: string; path: string; rawQuery: string; headers: Record<string, string | undefined>; query: { user: string | undefined }; signal: AbortSignal | undefined } {
    const { offset, length } = options;
    const range = offset === undefined && length === undefined ? undefined : `bytes=${offset ?? 0}-${length === undefined ? "" : (offset ?? 0) + length - 1}`;
    return {
      method,
      path: `${this.#sandbox}/files`,
      query: { user: options.user },
      rawQuery: pathQuery("path", path),
      headers: { range, "if-match": options.ifMatch, "accept-encoding": "identity" },
      signal: options.signal,
    };
  }
}

function isRepeatable(content: Content): boolean {
  return typeof content === "string" || content instanceof Uint8Array || content instanceof ArrayBuffer || content instanceof Blob;
}

function pathQuery(name: string, path: FilePath): string {
  if (typeof path === "string") return `${name}=${encodeURIComponent(path)}`;
  return `${name}=${path.pathPercent ?? encodeURIComponent((path as { path: string }).path)}`;
}

function modeOf(mode: string | number | undefined): string | undefined {
  return typeof mode === "number" ? mode.toString(8).padStart(4, "0") : mode;
}

/** The body of an answer, with the errors of a broken connection made the SDK's own. */
function bodyOf(response: Response, request: { method: string; path: string; signal?: AbortSignal | undefined }): ReadableStream<Uint8Array> {
  const { body } = response;
  return streamOf((async function* (): AsyncGenerator<Uint8Array> {
    if (body === null) return;
    try {
      yield* pieces(body);
    } catch (error) {
      throw brokenBody(error, request);
    }
  })());
}
