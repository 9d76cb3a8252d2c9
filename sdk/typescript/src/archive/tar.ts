// The tar format: ustar, with PAX records for what does not fit. GNU's long names are read as well.
import { type Content, concatBytes, pieces, streamOf, toBytes } from "../bytes.js";
import { CaySandboxError, invalidArgument } from "../errors.js";

/** What {@link createTar} packs. */
export interface TarInput {
  /** Relative, with slashes. */
  path: string;
  /** Default: file, or a symlink where there is a target. */
  type?: "file" | "directory" | "symlink";
  /** The content of a file. What is streamed needs its size. */
  data?: Content;
  size?: number;
  /** Permission bits; default 0644, 0755 for a directory. */
  mode?: number;
  /** Default: now. */
  mtime?: Date;
  /** Where a symlink points. */
  target?: string;
}

/** What {@link readTar} yields. */
export interface TarEntry {
  path: string;
  type: "file" | "directory" | "symlink" | "link" | "other";
  size: number;
  mode: number;
  mtime: Date;
  /** Of a symlink, or the entry that a link repeats. */
  target: string | undefined;
  /** The content, once and before the next entry is asked for; what is not read is passed over. */
  body: AsyncIterable<Uint8Array>;
  /** The whole content. */
  bytes(): Promise<Uint8Array>;
  text(): Promise<string>;
}

const block = 512;
const maxRecords = 1024 * 1024; // bytes of one PAX header or long name
const maxOctalSize = 0o77777777777;
const encoder = new TextEncoder();

function invalid(message: string): CaySandboxError {
  return new CaySandboxError(`tar: ${message}`, { reason: "invalid_archive" });
}

/** Packs entries as they come. Memory is that of one piece of content. */
export function createTar(entries: Iterable<TarInput> | AsyncIterable<TarInput>): ReadableStream<Uint8Array> {
  return streamOf(pack(entries));
}

async function* pack(entries: Iterable<TarInput> | AsyncIterable<TarInput>): AsyncGenerator<Uint8Array> {
  for await (const entry of entries) {
    const type = entry.type ?? (entry.target === undefined ? "file" : "symlink");
    if (entry.path === "" || entry.path.includes("\0")) throw invalidArgument(`tar: ${JSON.stringify(entry.path)} is no path`);
    const content = type === "file" ? (entry.data ?? "") : "";
    const size = type === "file" ? sizeOf(content, entry) : 0;
    yield header(entry, type, size);
    if (type !== "file") continue;
    let written = 0;
    for await (const piece of pieces(content)) {
      written += piece.length;
      if (written > size) throw invalidArgument(`tar: ${entry.path} has more than the ${size} bytes that were announced`);
      yield piece;
    }
    if (written < size) throw invalidArgument(`tar: ${entry.path} has ${written} bytes instead of ${size}`);
    yield new Uint8Array(padding(size));
  }
  yield new Uint8Array(2 * block);
}

function sizeOf(content: Content, entry: TarInput): number {
  if (typeof content === "string" || content instanceof Uint8Array || content instanceof ArrayBuffer) return toBytes(content).length;
  if (content instanceof Blob) return content.size;
  if (entry.size === undefined) throw invalidArgument(`tar: ${entry.path} is streamed and needs its size`);
  return entry.size;
}

const padding = (size: number): number => (block - (size % block)) % block;

function header(entry: TarInput, type: "file" | "directory" | "symlink", size: number): Uint8Array {
  const path = type === "directory" && !entry.path.endsWith("/") ? `${entry.path}/` : entry.path;
  const target = type === "symlink" ? (entry.target ?? "") : "";
  const mtime = (entry.mtime ?? new Date()).getTime() / 1000;
  const mode = (entry.mode ?? (type === "directory" ? 0o755 : 0o644)) & 0o7777;
  const records: string[] = [];
  const name = split(path);
  if (name === undefined) records.push(record("path", path));
  if (!ascii(target) || target.length > 100) records.push(record("linkpath", target));
  if (size > maxOctalSize) records.push(record("size", String(size)));
  const whole = Math.floor(mtime);
  if (mtime < 0 || mtime !== whole) records.push(record("mtime", mtime.toFixed(3)));
  const fields = {
    name: name?.name ?? path.replace(/[^\x20-\x7e]/g, "_").slice(0, 100),
    prefix: name?.prefix ?? "",
    mode, size: size > maxOctalSize ? 0 : size, mtime: Math.max(0, whole), target: ascii(target) ? target.slice(0, 100) : "",
    flag: { file: "0", directory: "5", symlink: "2" }[type],
  };
  if (records.length === 0) return rawHeader(fields);
  const pax = encoder.encode(records.join(""));
  return concatBytes([
    rawHeader({ name: "pax", prefix: "", mode: 0o644, size: pax.length, mtime: fields.mtime, target: "", flag: "x" }),
    pax, new Uint8Array(padding(pax.length)), rawHeader(fields),
  ]);
}

const ascii = (text: string): boolean => /^[\x20-\x7e]*$/.test(text);

/** A path in the two fields that ustar has for it, where it fits. */
function split(path: string): { name: string; prefix: string } | undefined {
  if (!ascii(path)) return undefined;
  if (path.length <= 100) return { name: path, prefix: "" };
  if (path.length > 256) return undefined;
  for (let slash = path.indexOf("/"); slash >= 0 && slash <= 155; slash = path.indexOf("/", slash + 1)) {
    const name = path.slice(slash + 1);
    if (slash > 0 && name !== "" && name.length <= 100) return { name, prefix: path.slice(0, slash) };
  }
  return undefined;
}

/** A PAX record: its length, which counts its own digits, then key and value. */
function record(key: string, value: string): string {
  const rest = encoder.encode(` ${key}=${value}\n`).length;
  let length = rest + String(rest).length;
  if (rest + String(length).length !== length) length = rest + String(length).length;
  return `${length} ${key}=${value}\n`;
}

function rawHeader(fields: { name: string; prefix: string; mode: number; size: number; mtime: number; target: string; flag: string }): Uint8Array {
  const head = new Uint8Array(block);
  const put = (at: number, text: string): void => head.set(encoder.encode(text), at);
  const octal = (at: number, width: number, value: number): void => put(at, `${value.toString(8).padStart(width - 1, "0")}\0`);
  put(0, fields.name);
  octal(100, 8, fields.mode);
  octal(108, 8, 0);
  octal(116, 8, 0);
  octal(124, 12, fields.size);
  octal(136, 12, Math.min(fields.mtime, maxOctalSize));
  put(148, " ".repeat(8));
  put(156, fields.flag);
  put(157, fields.target);
  put(257, "ustar\x0000");
  octal(329, 8, 0);
  octal(337, 8, 0);
  put(345, fields.prefix);
  put(148, `${checksum(head).toString(8).padStart(6, "0")}\0 `);
  return head;
}

function checksum(head: Uint8Array): number {
  let sum = 0;
  for (let i = 0; i < block; i++) sum += i >= 148 && i < 156 ? 0x20 : (head[i] as number);
  return sum;
}

/**
 * Yields the entries of a tar archive, uncompressed, as they arrive. An archive that is cut short or damaged is an error. Paths are as
 * the archive has them: whoever writes them to a disk must refuse those that lead out, as `files.downloadDirectory` does.
 */
export async function* readTar(archive: Content): AsyncGenerator<TarEntry> {
  const source = new Source(pieces(archive));
  try {
    yield* entriesOf(source);
  } finally {
    await source.close();
  }
}

async function* entriesOf(source: Source): AsyncGenerator<TarEntry> {
  const global = new Map<string, string>();
  let local = new Map<string, string>();
  for (;;) {
    const head = await source.take(block);
    if (head === undefined) throw invalid("the archive is cut short");
    if (head.every((byte) => byte === 0)) return await source.drain(); // what follows the end is padding
    if (octalOf(head, 148, 8) !== checksum(head)) throw invalid("a header's checksum is wrong");
    const flag = String.fromCharCode(head[156] as number);
    let size = numberOf(head, 124, 12);
    if (["x", "g", "L", "K"].includes(flag)) {
      if (size > maxRecords) throw invalid("a header's records are too large");
      const data = (await source.take(size)) ?? cut();
      await source.skip(padding(size));
      if (flag === "L" || flag === "K") local.set(flag === "L" ? "path" : "linkpath", stringOf(data, 0, data.length));
      else records(data, flag === "g" ? global : local);
      continue;
    }
    const pax = (key: string): string | undefined => local.get(key) ?? global.get(key);
    if (pax("size") !== undefined) size = count(pax("size") as string);
    const prefix = isUstar(head) ? stringOf(head, 345, 155) : "";
    const name = stringOf(head, 0, 100);
    const path = pax("path") ?? (prefix === "" ? name : `${prefix}/${name}`);
    const type = typeOf(flag, path);
    if (type !== "file" && type !== "other") size = 0;
    const link = pax("linkpath") ?? stringOf(head, 157, 100);
    const seconds = Number(pax("mtime") ?? numberOf(head, 136, 12));
    const body = new Body(source, size);
    yield {
      path: type === "directory" ? path.replace(/(?<=.)\/+$/, "") : path,
      type, size, mode: numberOf(head, 100, 8) & 0o7777,
      mtime: new Date(Number.isFinite(seconds) ? seconds * 1000 : 0),
      target: type === "symlink" || type === "link" ? link : undefined,
      body,
      bytes: () => body.bytes(),
      text: async () => new TextDecoder().decode(await body.bytes()),
    };
    await body.skip();
    await source.skip(padding(size));
    local = new Map();
  }
}

function cut(): never {
  throw invalid("the archive is cut short");
}

function typeOf(flag: string, path: string): TarEntry["type"] {
  switch (flag) {
    case "0":
    case "\0":
    case "7":
      return path.endsWith("/") ? "directory" : "file"; // as archives before ustar say it
    case "1":
      return "link";
    case "2":
      return "symlink";
    case "5":
      return "directory";
    default:
      return "other";
  }
}

function isUstar(head: Uint8Array): boolean {
  return stringOf(head, 257, 5) === "ustar" && head[262] === 0;
}

function stringOf(data: Uint8Array, at: number, length: number): string {
  const field = data.subarray(at, at + length);
  const end = field.indexOf(0);
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(end < 0 ? field : field.subarray(0, end));
}

function octalOf(head: Uint8Array, at: number, length: number): number {
  const text = stringOf(head, at, length).trim();
  if (!/^[0-7]*$/.test(text)) throw invalid("a header's number is malformed");
  return text === "" ? 0 : parseInt(text, 8);
}

/** Octal, or GNU's binary form for what is larger. */
function numberOf(head: Uint8Array, at: number, length: number): number {
  const first = head[at] as number;
  if ((first & 0x80) === 0) return octalOf(head, at, length);
  if (first === 0xff) return 0; // negative: a time before 1970
  let value = first & 0x7f;
  for (let i = 1; i < length; i++) value = value * 256 + (head[at + i] as number);
  if (!Number.isSafeInteger(value)) throw invalid("a header's number is too large");
  return value;
}

function count(text: string): number {
  const value = Number(text);
  if (!/^\d+$/.test(text) || !Number.isSafeInteger(value)) throw invalid("a size is malformed");
  return value;
}

function records(data: Uint8Array, into: Map<string, string>): void {
  for (let at = 0; at < data.length; ) {
    const space = data.indexOf(0x20, at);
    const length = space < 0 ? NaN : Number(stringOf(data, at, space - at));
    if (!Number.isInteger(length) || length < space - at + 3 || at + length > data.length) throw invalid("a PAX record is malformed");
    const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(data.subarray(space + 1, at + length - 1));
    const equals = text.indexOf("=");
    if (equals <= 0 || data[at + length - 1] !== 0x0a) throw invalid("a PAX record is malformed");
    into.set(text.slice(0, equals), text.slice(equals + 1));
    at += length;
  }
}

/** The bytes of an archive, read in amounts. */
class Source {
  readonly #chunks: AsyncGenerator<Uint8Array>;
  #chunk: Uint8Array = new Uint8Array(0);

  constructor(chunks: AsyncGenerator<Uint8Array>) {
    this.#chunks = chunks;
  }

  /** Up to so many bytes, at least one; undefined at the end. */
  async some(most: number): Promise<Uint8Array | undefined> {
    while (this.#chunk.length === 0) {
      const { done, value } = await this.#chunks.next();
      if (done) return undefined;
      this.#chunk = value;
    }
    const out = this.#chunk.subarray(0, most);
    this.#chunk = this.#chunk.subarray(most);
    return out;
  }

  /** Exactly so many bytes; undefined when nothing is left at all. */
  async take(length: number): Promise<Uint8Array | undefined> {
    const parts: Uint8Array[] = [];
    let left = length;
    while (left > 0) {
      const part = await this.some(left);
      if (part === undefined) {
        if (left === length) return undefined;
        cut();
      }
      parts.push(part);
      left -= part.length;
    }
    return parts.length === 1 ? (parts[0] as Uint8Array) : concatBytes(parts);
  }

  async skip(length: number): Promise<void> {
    while (length > 0) length -= ((await this.some(length)) ?? cut()).length;
  }

  async drain(): Promise<void> {
    for (let more = true; more; ) more = (await this.some(64 * 1024)) !== undefined;
  }

  async close(): Promise<void> {
    await this.#chunks.return(undefined);
  }
}

class Body implements AsyncIterable<Uint8Array> {
  readonly #source: Source;
  #left: number;

  constructor(source: Source, size: number) {
    this.#source = source;
    this.#left = size;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    while (this.#left > 0) {
      const piece = (await this.#source.some(this.#left)) ?? cut();
      this.#left -= piece.length;
      yield piece;
    }
  }

  async bytes(): Promise<Uint8Array> {
    const parts: Uint8Array[] = [];
    for await (const piece of this) parts.push(piece);
    return concatBytes(parts);
  }

  async skip(): Promise<void> {
    await this.#source.skip(this.#left);
    this.#left = 0;
  }
}
