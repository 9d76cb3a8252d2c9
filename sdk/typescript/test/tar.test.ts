import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { gzipSync } from "node:zlib";
import { createTar, readTar, type TarEntry, type TarInput } from "../src/index.js";
import { extract, walk } from "../src/archive/directory.js";
import { gunzipIfNeeded } from "../src/archive/gzip.js";
import { concatBytes, streamOf } from "../src/bytes.js";
import { collect, fails } from "./suite/expect.js";

async function bytesOf(entries: TarInput[]): Promise<Uint8Array> {
  return concatBytes(await collect(createTar(entries)));
}

async function read(archive: Uint8Array, piece = archive.length): Promise<(Omit<TarEntry, "body" | "bytes" | "text"> & { content: string })[]> {
  const pieces = (async function* () {
    for (let at = 0; at < archive.length; at += piece) yield archive.subarray(at, at + piece);
  })();
  const seen = [];
  for await (const { body: _, bytes: __, text, ...entry } of readTar(pieces)) seen.push({ ...entry, content: await text() });
  return seen;
}

describe("tar", () => {
  const mtime = new Date(1_700_000_000_000);
  const long = `${"d/".repeat(60)}${"n".repeat(120)}`;

  it("round trips files, directories and links with names of any length and kind", async () => {
    const entries: TarInput[] = [
      { path: "dir", type: "directory", mode: 0o700, mtime },
      { path: "dir/a", data: "content", mode: 0o755, mtime },
      { path: "dir/empty", data: "", mtime },
      { path: "ü日本\nline", data: new Uint8Array(513), mtime },
      { path: long, data: "long", mtime },
      { path: `${"p".repeat(80)}/${"q".repeat(90)}`, data: "prefix", mtime },
      { path: "link", target: "dir/a", mtime },
      { path: "longlink", target: `${"t/".repeat(100)}ü`, mtime },
      { path: "fraction", data: "x", mtime: new Date(1_700_000_000_250) },
    ];
    const archive = await bytesOf(entries);
    assert.equal(archive.length % 512, 0);
    for (const piece of [archive.length, 1, 511, 512, 1000]) {
      const seen = await read(archive, piece);
      assert.deepEqual(seen.map((e) => e.path), entries.map((e) => e.path));
      assert.deepEqual(seen.map((e) => e.type), ["directory", "file", "file", "file", "file", "file", "symlink", "symlink", "file"]);
      assert.deepEqual(seen.map((e) => e.mode).slice(0, 3), [0o700, 0o755, 0o644]);
      assert.equal(seen[1]?.content, "content");
      assert.equal(seen[4]?.content, "long");
      assert.equal(seen[6]?.target, "dir/a");
      assert.equal(seen[7]?.target, `${"t/".repeat(100)}ü`);
      assert.equal(seen[1]?.mtime.getTime(), mtime.getTime());
      assert.equal(seen[8]?.mtime.getTime(), 1_700_000_000_250);
    }
  });

  it("is understood by the system's tar, and understands it", async () => {
    const dir = fs.mkdtempSync(join(tmpdir(), "cay-tar-"));
    try {
      fs.writeFileSync(join(dir, "a.tar"), await bytesOf([{ path: "dir", type: "directory" }, { path: `dir/${long}`, data: "long", mode: 0o750, mtime }, { path: "dir/ü", data: "u" }, { path: "dir/l", target: "ü" }]));
      execFileSync("tar", ["-xf", "a.tar"], { cwd: dir });
      assert.equal(fs.readFileSync(join(dir, "dir", long), "utf8"), "long");
      assert.equal(fs.statSync(join(dir, "dir", long)).mode & 0o777, 0o750);
      assert.equal(fs.readlinkSync(join(dir, "dir/l")), "ü");
      fs.linkSync(join(dir, "dir/ü"), join(dir, "dir/üz"));
      for (const format of ["ustar", "gnu", "pax"]) {
        const only = format === "ustar" ? ["dir/ü", "dir/l"] : ["dir"];
        const archive = execFileSync("tar", [`--format=${format}`, "--sort=name", "-cf", "-", ...only], { cwd: dir });
        const seen = await read(new Uint8Array(archive));
        assert.equal(seen.find((e) => e.path === "dir/ü")?.content, "u", format);
        if (format !== "ustar") {
          assert.equal(seen.find((e) => e.path === `dir/${long}`)?.content, "long", format);
          assert.equal(seen.find((e) => e.type === "link")?.target, "dir/ü", format);
        }
      }
    } finally {
      fs.rmSync(dir, { recursive: true });
    }
  });

  it("passes over content that nobody reads, and may be left at any entry", async () => {
    const archive = await bytesOf([{ path: "1", data: "x".repeat(5000) }, { path: "2", data: "two" }, { path: "3", data: "three" }]);
    const paths: string[] = [];
    for await (const entry of readTar(archive)) {
      paths.push(entry.path);
      if (entry.path === "2") break;
    }
    assert.deepEqual(paths, ["1", "2"]);
  });

  it("takes streams whose size is known, and refuses those that differ from it", async () => {
    const stream = (): ReadableStream<Uint8Array> => new Blob(["streamed"]).stream();
    assert.equal((await read(await bytesOf([{ path: "s", data: stream(), size: 8 }])))[0]?.content, "streamed");
    for (const size of [undefined, 7, 9]) assert.equal((await fails(bytesOf([{ path: "s", data: stream(), size: size as number }]))).reason, "invalid_argument");
    assert.equal((await fails(bytesOf([{ path: "", data: "" }]))).reason, "invalid_argument");
  });

  it("that is cut short anywhere or damaged is an error", async () => {
    const archive = await bytesOf([{ path: "a", data: "x".repeat(600) }, { path: long, data: "long" }]);
    for (let at = 0; at < archive.length - 1024; at += 97) assert.equal((await fails(read(archive.subarray(0, at)))).reason, "invalid_archive", `cut at ${at}`);
    const damaged = archive.slice();
    damaged[0] = 0x62;
    assert.match((await fails(read(damaged))).message, /checksum/);
    const negative = await bytesOf([{ path: "a", data: "x" }]);
    negative.set(new TextEncoder().encode("99999999999"), 124);
    assert.equal((await fails(read(negative))).reason, "invalid_archive");
  });

  it("of any bytes at all ends", async () => {
    let seed = 7;
    const random = (): number => (seed = (seed * 1103515245 + 12345) % 2147483648) >> 8;
    const good = await bytesOf([{ path: long, data: "x".repeat(100), target: undefined as never }, { path: "b", data: "y" }]);
    for (let round = 0; round < 300; round++) {
      const bad = good.slice();
      for (let i = 0; i < 4; i++) bad[random() % bad.length] = random() % 256;
      try {
        await read(bad);
      } catch (error) {
        assert.equal((error as { reason?: string }).reason, "invalid_archive");
      }
    }
  });

  it("is found within gzip or without, and a cut gzip is an error", async () => {
    const archive = await bytesOf([{ path: "a", data: "x".repeat(10_000) }]);
    const packed = new Uint8Array(gzipSync(archive));
    for (const content of [archive, packed]) {
      const plain = concatBytes(await collect(gunzipIfNeeded(content)));
      assert.deepEqual(plain, archive);
    }
    assert.equal((await fails(collect(gunzipIfNeeded(packed.subarray(0, packed.length - 10))))).reason, "invalid_archive");
    assert.equal((await fails(collect(readTar(streamOf(gunzipIfNeeded(packed.subarray(0, 40))))))).reason, "invalid_archive");
  });
});

describe("extracting an archive", () => {
  let dir: string;
  before(() => (dir = fs.mkdtempSync(join(tmpdir(), "cay-extract-"))));
  after(() => fs.rmSync(dir, { recursive: true }));
  let round = 0;
  const fresh = (): { root: string; out: string } => {
    const root = join(dir, String(round++));
    fs.mkdirSync(join(root, "outside"), { recursive: true });
    fs.writeFileSync(join(root, "outside/secret"), "secret");
    return { root, out: join(root, "out") };
  };
  const unpack = async (entries: TarInput[], out: string) => extract(readTar(await bytesOf(entries)), out);

  it("never writes outside of the directory", async () => {
    for (const path of ["../outside/new", "/tmp/cay-ts-escape", "a/../../outside/new", "..", "./../outside/new"]) {
      const { root, out } = fresh();
      assert.equal((await fails(unpack([{ path, data: "x" }], out))).reason, "unsafe_archive", path);
      assert.deepEqual(fs.readdirSync(join(root, "outside")), ["secret"]);
    }
  });

  it("never writes through a link, from the archive or there before", async () => {
    const { root, out } = fresh();
    fs.mkdirSync(out);
    fs.symlinkSync("../outside", join(out, "there"));
    assert.equal((await fails(unpack([{ path: "there/new", data: "x" }], out))).reason, "unsafe_archive");
    fs.symlinkSync("../outside/secret", join(out, "file"));
    await unpack([{ path: "file", data: "replaced" }], out);
    assert.equal(fs.readFileSync(join(root, "outside/secret"), "utf8"), "secret");
    assert.equal(fs.readFileSync(join(out, "file"), "utf8"), "replaced");
    await fails(unpack([{ path: "in", target: "." }, { path: "in/x/../../y", data: "x" }], fresh().out));
    assert.deepEqual(fs.readdirSync(join(root, "outside")), ["secret"]);
  });

  it("leaves out links that lead out, and says so", async () => {
    const { out } = fresh();
    const report = await unpack([
      { path: "d/ok", target: "../f" }, { path: "f", data: "x" }, { path: "abs", target: "/etc/passwd" }, { path: "up", target: "../outside" },
      { path: "d/upup", target: "../../outside" }, { path: "self", target: "." }, { path: "sly", target: "self/../../outside" },
    ], out);
    assert.deepEqual(report.skipped.map((s) => s.path), ["abs", "up", "d/upup", "sly"]);
    assert.deepEqual(fs.readdirSync(out).sort(), ["d", "f", "self"]);
    assert.equal(fs.readFileSync(join(out, "d/ok"), "utf8"), "x");
  });

  it("keeps modes without set-id bits, and times of directories", async () => {
    const { out } = fresh();
    const mtime = new Date(1e12);
    await unpack([{ path: "d", type: "directory", mode: 0o555, mtime }, { path: "d/f", data: "x", mode: 0o4755, mtime }], out);
    assert.equal(fs.statSync(join(out, "d/f")).mode & 0o7777, 0o755);
    assert.equal(fs.statSync(join(out, "d")).mode & 0o7777, 0o555);
    assert.equal(fs.statSync(join(out, "d")).mtimeMs, 1e12);
    fs.chmodSync(join(out, "d"), 0o755);
  });

  it("repeats what a walk has packed", async () => {
    const { root, out } = fresh();
    fs.symlinkSync("secret", join(root, "outside/l"));
    await extract(readTar(createTar(walk(join(root, "outside")))), out);
    assert.deepEqual(fs.readdirSync(out).sort(), ["l", "secret"]);
    await assert.rejects(collect(walk(join(root, "nope"))), { code: "ENOENT" });
  });
});
