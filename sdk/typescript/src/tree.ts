import { extract, walk, type DownloadReport } from "./archive/directory.js";
import { gunzipIfNeeded, gzip } from "./archive/gzip.js";
import { createTar, readTar } from "./archive/tar.js";
import { type Content, pieces, streamOf } from "./bytes.js";
import { type Client, type Query, type RequestOptions, brokenBody, read } from "./client.js";
import type * as model from "./generated/model.js";
import { List, pageOf } from "./list.js";
import type { Abortable, FileEntry } from "./types.js";

/** An absolute path. A name that is not UTF-8 is given as the entry that a list answered, or percent-encoded. */
export type FilePath = string | { path: string; pathPercent?: string } | { pathPercent: string };

export type ArchiveFormat = "tar" | "tar.gz" | "tar.zst";

/** What an upload unpacked; devices, FIFOs and sockets are skipped. */
export type ArchiveReport = model.ArchiveAnswer;

/** Which part of a file is read, and of which state of it. */
export interface ReadFields {
  /** First byte, and how many; default all. */
  offset?: number;
  length?: number;
  /** Fail with precondition_failed when the file is another by now. */
  ifMatch?: string;
}

/** How a file is written. */
export interface WriteFields {
  /** Octal digits or a number; default: that of the file it replaces, else 0644. */
  mode?: string | number;
  /** Write only over the file with this etag. */
  ifMatch?: string;
  /** Fail with precondition_failed when there is a file already. */
  createOnly?: boolean;
}

/** @internal Where the routes of a tree are. */
export interface TreeRoutes {
  content: string;
  list: string;
  archive: string;
}

/** Files behind the API, a sandbox's or a session's: what both can do. `Access` is what every method takes. */
export abstract class FileTree<Access extends Abortable = Abortable> {
  readonly #client: Client;
  readonly #routes: TreeRoutes;

  /** @internal */
  constructor(client: Client, routes: TreeRoutes) {
    this.#client = client;
    this.#routes = routes;
  }

  /** The whole content. A download that breaks off is an error, never a short file. */
  async read(path: FilePath, options?: Access & ReadFields): Promise<Uint8Array> {
    const request = this.#readRequest("GET", path, options);
    const response = await this.#client.send(request);
    return new Uint8Array(await read(response.arrayBuffer(), request));
  }

  async readText(path: FilePath, options?: Access & ReadFields): Promise<string> {
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(await this.read(path, options));
  }

  /** The content as it comes. Cancelling the stream ends the download. */
  async readStream(path: FilePath, options?: Access & ReadFields): Promise<ReadableStream<Uint8Array>> {
    const request = this.#readRequest("GET", path, options);
    return bodyOf(await this.#client.send(request), request);
  }

  /** Size and etag without the content. */
  async head(path: FilePath, options?: Access): Promise<{ size: number; etag: string | null; modifiedAt: Date | null }> {
    const { headers } = await this.#client.send(this.#readRequest("HEAD", path, options));
    const modified = headers.get("last-modified");
    return { size: Number(headers.get("content-length") ?? 0), etag: headers.get("etag"), modifiedAt: modified === null ? null : new Date(modified) };
  }

  /** Writes a file whole: readers see the old or the new one, and an upload that breaks off changes nothing. Directories above are made. */
  write(path: FilePath, content: Content, options?: Access & WriteFields): Promise<FileEntry> {
    const { mode, ifMatch, createOnly } = options ?? ({} as WriteFields);
    return this.#client.json({
      ...this.#at(options, { mode: modeOf(mode) }),
      method: "PUT",
      path: this.#routes.content,
      rawQuery: pathQuery("path", path),
      headers: { "if-match": ifMatch, "if-none-match": createOnly ? "*" : undefined },
      body: content,
      timeout: null,
    });
  }

  async remove(path: FilePath, options?: Access & { recursive?: boolean }): Promise<void> {
    await this.#client.discard({
      ...this.#at(options, { recursive: options?.recursive }), method: "DELETE", path: this.#routes.content, rawQuery: pathQuery("path", path),
    });
  }

  /** The entries of a directory, with `depth` those below it as well. Await the list, or loop over it page by page. */
  list(path: FilePath, options?: Access & { depth?: number; limit?: number }): List<FileEntry> {
    return new List(async (cursor) => pageOf(await this.#client.json<{ items: FileEntry[] | null; nextCursor: string | null }>({
      ...this.#at(options, { depth: options?.depth, limit: options?.limit, cursor }),
      method: "GET",
      path: this.#routes.list,
      rawQuery: pathQuery("path", path),
    })));
  }

  /** Unpacks an archive below a path, which is made. The server tells the format by the first bytes where it is not given. */
  uploadArchive(path: FilePath, archive: Content, options?: Access & { format?: ArchiveFormat }): Promise<ArchiveReport> {
    return this.#unpack(path, () => archive, options?.format, options, isRepeatable(archive));
  }

  /** A directory as an archive, as it comes. Cancelling the stream ends the download; one that breaks off fails while it is read. */
  async downloadArchive(path: FilePath, options?: Access & { format?: ArchiveFormat }): Promise<ReadableStream<Uint8Array>> {
    return this.#pack(path, options?.format, options);
  }

  /** Copies a local directory to a path, which is made, in one request. Modes, times and links are kept. */
  uploadDirectory(local: string, path: FilePath, options?: Access): Promise<ArchiveReport> {
    return this.#unpack(path, () => gzip(createTar(walk(local))), "tar.gz", options, true);
  }

  /**
   * Copies a directory to a local one, which is made. What comes cannot write outside of it: an entry that would is an error, and a link
   * that leads out is left out, which the report says.
   */
  async downloadDirectory(path: FilePath, local: string, options?: Access): Promise<DownloadReport> {
    return extract(readTar(streamOf(gunzipIfNeeded(await this.#pack(path, "tar.gz", options)))), local);
  }

  #unpack(path: FilePath, makeBody: () => Content, format: ArchiveFormat | undefined, options: Access | undefined, repeatable: boolean): Promise<ArchiveReport> {
    return this.#client.json({
      ...this.#at(options, { format }), method: "PUT", path: this.#routes.archive, rawQuery: pathQuery("path", path), makeBody, repeatable, timeout: null,
    });
  }

  async #pack(path: FilePath, format: ArchiveFormat | undefined, options: Access | undefined): Promise<ReadableStream<Uint8Array>> {
    const request = { ...this.#at(options, { format }), method: "GET", path: this.#routes.archive, rawQuery: pathQuery("path", path) };
    return bodyOf(await this.#client.send(request), request);
  }

  #at(options: Access | undefined, query: Query): { query: Query; signal: AbortSignal | undefined } {
    return { query: { user: (options as { user?: string } | undefined)?.user, ...query }, signal: options?.signal };
  }

  #readRequest(method: "GET" | "HEAD", path: FilePath, options: (Access & ReadFields) | undefined): RequestOptions {
    const { offset, length, ifMatch } = options ?? ({} as ReadFields);
    const range = offset === undefined && length === undefined ? undefined : `bytes=${offset ?? 0}-${length === undefined ? "" : (offset ?? 0) + length - 1}`;
    return {
      ...this.#at(options, {}),
      method,
      path: this.#routes.content,
      rawQuery: pathQuery("path", path),
      headers: { range, "if-match": ifMatch, "accept-encoding": "identity" },
    };
  }
}

function isRepeatable(content: Content): boolean {
  return typeof content === "string" || content instanceof Uint8Array || content instanceof ArrayBuffer || content instanceof Blob;
}

export function pathQuery(name: string, path: FilePath): string {
  if (typeof path === "string") return `${name}=${encodeURIComponent(path)}`;
  return `${name}=${path.pathPercent ?? encodeURIComponent((path as { path: string }).path)}`;
}

export function modeOf(mode: string | number | undefined): string | undefined {
  return typeof mode === "number" ? mode.toString(8).padStart(4, "0") : mode;
}

/** The body of an answer, as it comes, with the errors of a broken connection made the SDK's own. */
export function bodyOf(response: Response, request: { method: string; path: string; signal?: AbortSignal | undefined }): ReadableStream<Uint8Array> {
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
