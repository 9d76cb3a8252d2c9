// Directories of the local disk, to and from tar. Runtimes without node:fs have no local disk that could be meant.
import type { Stats } from "node:fs";
import { CaySandboxError } from "../errors.js";
import type { TarEntry, TarInput } from "./tar.js";

export interface DownloadReport {
  files: number;
  directories: number;
  bytes: number;
  /** What was left out, and why: links that lead out of the directory, and what is neither file, directory nor link. */
  skipped: { path: string; why: string }[];
}

/** Everything below a local directory, in the order of names. Symlinks stay links; sockets, devices and FIFOs are left out. */
export async function* walk(directory: string): AsyncGenerator<TarInput> {
  const fs = await import("node:fs/promises");
  const { join } = await import("node:path");
  const root = await fs.stat(directory);
  if (!root.isDirectory()) throw new CaySandboxError(`${directory} is no directory`, { reason: "invalid_argument" });
  yield* below(directory, "");

  async function* below(path: string, relative: string): AsyncGenerator<TarInput> {
    const names = await fs.readdir(path);
    for (const name of names.sort()) {
      const full = join(path, name);
      const entry = relative === "" ? name : `${relative}/${name}`;
      const stat = await fs.lstat(full);
      const common = { path: entry, mode: stat.mode & 0o777, mtime: stat.mtime };
      if (stat.isDirectory()) {
        yield { ...common, type: "directory" };
        yield* below(full, entry);
      } else if (stat.isSymbolicLink()) {
        yield { ...common, type: "symlink", target: await fs.readlink(full) };
      } else if (stat.isFile()) {
        yield { ...common, type: "file", size: stat.size, data: content(full, stat.size) };
      }
    }
  }

  /** Reads as much as was announced: a file that grows meanwhile must not break the archive. */
  async function* content(path: string, size: number): AsyncGenerator<Uint8Array> {
    const file = await fs.open(path, "r");
    try {
      for (let left = size; left > 0; ) {
        const buffer = new Uint8Array(Math.min(left, 256 * 1024));
        const { bytesRead } = await file.read(buffer, 0, buffer.length, null);
        if (bytesRead === 0) throw new CaySandboxError(`${path} became shorter while it was read`, { reason: "invalid_argument" });
        left -= bytesRead;
        yield buffer.subarray(0, bytesRead);
      }
    } finally {
      await file.close();
    }
  }
}

/**
 * Writes the entries of an archive below a local directory, which is made. An archive comes from a sandbox and is not trusted: an entry
 * whose path leads out, or passes through a link, ends it with reason `unsafe_archive`; what was written before stays. A link that leads
 * out is left out.
 */
export async function extract(entries: AsyncIterable<TarEntry>, directory: string): Promise<DownloadReport> {
  const fs = await import("node:fs/promises");
  const { constants } = await import("node:fs");
  const path = await import("node:path");
  await fs.mkdir(directory, { recursive: true });
  const root = await fs.realpath(directory);
  const report: DownloadReport = { files: 0, directories: 0, bytes: 0, skipped: [] };
  const directories: { path: string; entry: TarEntry }[] = [];
  const links: { path: string; entry: TarEntry }[] = [];

  for await (const entry of entries) {
    const parts = safeParts(entry.path);
    if (parts.length === 0) continue; // the directory itself
    const parent = await realParent(parts);
    const full = path.join(parent, parts[parts.length - 1] as string);
    switch (entry.type) {
      case "directory":
        await makeDirectory(full, entry);
        directories.push({ path: full, entry });
        report.directories++;
        break;
      case "file":
        await clear(full, entry);
        await writeFile(full, entry);
        report.files++;
        report.bytes += entry.size;
        break;
      case "link": {
        const target = await realParent(safeParts(entry.target ?? ""));
        const existing = path.join(target, path.basename(entry.target ?? ""));
        if (!(await fs.lstat(existing).catch(() => undefined))?.isFile()) throw unsafe(entry, "is a link to something that is no file of the archive");
        await clear(full, entry);
        await fs.link(existing, full);
        report.files++;
        break;
      }
      case "symlink":
        // Made last, so that no entry can be written through one.
        if (leadsOut(parts, entry.target ?? "")) {
          report.skipped.push({ path: entry.path, why: `it is a link out of the directory, to ${JSON.stringify(entry.target)}` });
          break;
        }
        await clear(full, entry);
        links.push({ path: full, entry });
        report.files++;
        break;
      default:
        report.skipped.push({ path: entry.path, why: "it is neither a file, a directory nor a link" });
    }
  }
  for (const link of links) {
    await clear(link.path, link.entry);
    await fs.symlink(link.entry.target ?? "", link.path);
  }
  for (const made of directories.reverse()) {
    await fs.chmod(made.path, made.entry.mode & 0o777);
    await fs.utimes(made.path, made.entry.mtime, made.entry.mtime);
  }
  return report;

  /** The directory above, made where it is missing, with no link on the way to it. */
  async function realParent(parts: string[]): Promise<string> {
    let at = root;
    for (const part of parts.slice(0, -1)) {
      at = path.join(at, part);
      const stat = await fs.lstat(at).catch(() => undefined);
      if (stat === undefined) await fs.mkdir(at);
      else if (!stat.isDirectory()) throw new CaySandboxError(`the archive writes below ${at}, which is no directory`, { reason: "unsafe_archive" });
    }
    return at;
  }

  async function makeDirectory(full: string, entry: TarEntry): Promise<void> {
    const stat = await fs.lstat(full).catch(() => undefined);
    if (stat === undefined) await fs.mkdir(full);
    else if (!stat.isDirectory()) throw unsafe(entry, "is a directory where something else is");
    await fs.chmod(full, 0o700); // until all is in it
  }

  /** Removes what is in the way, never what a link points to. */
  async function clear(full: string, entry: TarEntry): Promise<void> {
    const stat: Stats | undefined = await fs.lstat(full).catch(() => undefined);
    if (stat?.isDirectory()) throw unsafe(entry, "replaces a directory");
    if (stat !== undefined) await fs.unlink(full);
  }

  async function writeFile(full: string, entry: TarEntry): Promise<void> {
    const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | (constants.O_NOFOLLOW ?? 0);
    const file = await fs.open(full, flags, entry.mode & 0o777);
    try {
      for await (const piece of entry.body) await file.writeFile(piece);
      await file.chmod(entry.mode & 0o777); // whatever the umask
      await file.utimes(entry.mtime, entry.mtime);
    } finally {
      await file.close();
    }
  }
}

function unsafe(entry: TarEntry, why: string): CaySandboxError {
  return new CaySandboxError(`the archive's entry ${JSON.stringify(entry.path)} ${why}`, { reason: "unsafe_archive" });
}

/** The names of a relative path. It throws for one that leads out, on any system. */
function safeParts(path: string): string[] {
  const bad = (): CaySandboxError => new CaySandboxError(`the archive has the path ${JSON.stringify(path)}, which leads out of the directory`, { reason: "unsafe_archive" });
  if (path.startsWith("/") || path.includes("\0")) throw bad();
  const windows = (globalThis as { process?: { platform?: string } }).process?.platform === "win32";
  if (windows && /[\\:]/.test(path)) throw bad();
  const parts = path.split("/").filter((part) => part !== "" && part !== ".");
  if (parts.includes("..")) throw bad();
  return parts;
}

/** Whether a link at a path below the directory may point outside of it. ".." counts after a name too: the name may be a link itself. */
function leadsOut(parts: string[], target: string): boolean {
  if (target === "" || target.startsWith("/") || target.includes("\0")) return true;
  const steps = target.split("/").filter((part) => part !== "" && part !== ".");
  const up = steps.findIndex((part) => part !== "..");
  const leading = up < 0 ? steps.length : up;
  return leading > parts.length - 1 || steps.slice(leading).includes("..");
}
