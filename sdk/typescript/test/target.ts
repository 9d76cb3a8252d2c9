// The servers that the suite runs against: the fake, and a real one.
import { type ChildProcess, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { chmodSync, closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { CreateSandboxOptions } from "../src/index.js";
import { FakeServer } from "./fake/server.js";

export interface Target {
  url: string;
  apiKey: string;
  /** What a sandbox is made of there. */
  create: CreateSandboxOptions;
  /** Whether an operation is there: a server says it in its document, and in its features. */
  has(method: string, path: string): boolean;
  stop(): Promise<void>;
}

export async function fakeTarget(): Promise<Target & { fake: FakeServer }> {
  const fake = await FakeServer.start();
  return { fake, url: fake.url, apiKey: fake.key, create: { url: fake.url, apiKey: fake.key }, has: () => true, stop: () => fake.stop() };
}

/** Why there is no real server to test against. */
export function realMissing(): string | undefined {
  if ((process.env["CAY_URL"] && process.env["CAY_API_KEY"]) || process.env["CAY_TEST_BIN"]) return undefined;
  return "set CAY_URL and CAY_API_KEY, or CAY_TEST_BIN";
}

/** The server at CAY_URL, else one that is started from CAY_TEST_BIN and ended by stop. */
export async function realTarget(): Promise<Target> {
  const given = process.env["CAY_URL"] && process.env["CAY_API_KEY"] ? { url: process.env["CAY_URL"], apiKey: process.env["CAY_API_KEY"], stop: async () => undefined } : undefined;
  const server = given ?? (await startServer(process.env["CAY_TEST_BIN"] ?? ""));
  const document = (await (await fetch(`${server.url}/openapi.json`)).json()) as { paths: Record<string, Record<string, unknown>> };
  const { features } = (await (await fetch(`${server.url}/v1/info`, { headers: { authorization: `Bearer ${server.apiKey}` } })).json()) as { features: string[] };
  return {
    ...server,
    stop: async () => void (await server.stop()),
    create: { url: server.url, apiKey: server.apiKey, image: "host", memoryMb: 512, ttlSeconds: 600 },
    has: (method, path) => {
      const optional = /^\/v1\/(jobs|sessions)\b/.exec(path)?.[1];
      return document.paths[path]?.[method.toLowerCase()] !== undefined && (optional === undefined || features.includes(optional));
    },
  };
}

const readyTimeout = 120_000; // milliseconds
const stopTimeout = 60_000;

/** A server of the tests' own. */
export interface OwnServer {
  url: string;
  apiKey: string;
  /** Ends it and starts it again at the same address, with what it has kept. */
  restart(): Promise<void>;
  stop(): Promise<void>;
}

export async function startServer(bin: string): Promise<OwnServer> {
  const dir = mkdtempSync(join(tmpdir(), "cay-ts-"));
  chmodSync(dir, 0o711); // the server's user must reach its directory below
  const apiKey = `cay_${randomBytes(32).toString("hex")}`;
  writeFileSync(join(dir, "cay.yaml"), "{}\n");
  const env = {
    PATH: process.env["PATH"], HOME: dir, CAY_CONFIG: join(dir, "cay.yaml"), CAY_DATA_DIR: join(dir, "d"), CAY_LISTEN: `127.0.0.1:${await freePort()}`,
    CAY_BOOTSTRAP_KEY: apiKey,
  };
  let child: ChildProcess | undefined;
  let starts = 0;
  const stop = async (): Promise<void> => {
    if (child !== undefined) await ended(child);
    rmSync(dir, { recursive: true, force: true });
  };
  const start = async (): Promise<string> => {
    const log = join(dir, `log${++starts}`);
    const fd = openSync(log, "w"); // a file: children that outlive their parent hold a pipe open
    child = spawn(bin, ["up"], { cwd: dir, stdio: ["ignore", fd, fd], env });
    closeSync(fd);
    for (const deadline = Date.now() + readyTimeout; ; await new Promise((resolve) => setTimeout(resolve, 50))) {
      const text = readFileSync(log, "utf8");
      const [, url] = /^ready (\S+)$/m.exec(text) ?? [];
      if (url !== undefined) return url;
      if (child.exitCode !== null || Date.now() > deadline) {
        await stop();
        throw new Error(`cay up did not become ready:\n${text.slice(-4000)}`);
      }
    }
  };
  const url = await start();
  const restart = async (): Promise<void> => {
    await ended(child as ChildProcess);
    await start();
  };
  return { url, apiKey, restart, stop };
}

async function ended(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = new Promise((resolve) => child.once("exit", resolve));
  child.kill("SIGTERM");
  const timer = setTimeout(() => child.kill("SIGKILL"), stopTimeout);
  await gone;
  clearTimeout(timer);
}

/** A port below those that the kernel gives to outgoing connections, which no client can come upon meanwhile. */
async function freePort(): Promise<number> {
  for (let attempt = 0; attempt < 100; attempt++) {
    const port = 20_000 + Math.floor(Math.random() * 12_000);
    const server = createServer();
    const free = await new Promise<boolean>((resolve) => {
      server.once("error", () => resolve(false));
      server.listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
    });
    if (free) return port;
  }
  throw new Error("no free port was found");
}
