// A server of the tests' own: the real binary, as a user starts it.
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { chmodSync, closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const readyTimeout = 120_000; // milliseconds
const stopTimeout = 60_000;

/** Starts `bin up` and answers once it is ready: { url, apiKey, stop }. stop ends it and removes what it kept. */
export async function startServer(bin) {
  const dir = mkdtempSync(join(tmpdir(), "cay-mcp-"));
  chmodSync(dir, 0o711); // the server's user must reach its directory below
  const apiKey = `cay_${randomBytes(32).toString("hex")}`;
  writeFileSync(join(dir, "cay.yaml"), "{}\n");
  const env = {
    PATH: process.env.PATH, HOME: dir, CAY_CONFIG: join(dir, "cay.yaml"), CAY_DATA_DIR: join(dir, "d"), CAY_LISTEN: `127.0.0.1:${await freePort()}`,
    CAY_BOOTSTRAP_KEY: apiKey,
  };
  const log = join(dir, "log");
  const fd = openSync(log, "w"); // a file: children that outlive their parent hold a pipe open
  const child = spawn(bin, ["up"], { cwd: dir, stdio: ["ignore", fd, fd], env });
  closeSync(fd);
  let failure;
  child.once("error", (error) => (failure = error));
  const stop = async () => {
    await ended(child);
    rmSync(dir, { recursive: true, force: true });
  };
  for (const deadline = Date.now() + readyTimeout; ; await new Promise((resolve) => setTimeout(resolve, 50))) {
    const text = readFileSync(log, "utf8");
    const [, url] = /^ready (\S+)$/m.exec(text) ?? [];
    if (url !== undefined) return { url, apiKey, stop };
    if (failure || child.exitCode !== null || Date.now() > deadline) {
      await stop();
      throw new Error(`${bin} up did not become ready: ${failure ?? ""}\n${text.slice(-4000)}`);
    }
  }
}

async function ended(child) {
  if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
  const gone = new Promise((resolve) => child.once("exit", resolve));
  child.kill("SIGTERM");
  const timer = setTimeout(() => child.kill("SIGKILL"), stopTimeout);
  await gone;
  clearTimeout(timer);
}

/** A port below those that the kernel gives to outgoing connections, which no client can come upon meanwhile. */
async function freePort() {
  for (let attempt = 0; attempt < 100; attempt++) {
    const port = 20_000 + Math.floor(Math.random() * 12_000);
    const server = createServer();
    const free = await new Promise((resolve) => {
      server.once("error", () => resolve(false));
      server.listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
    });
    if (free) return port;
  }
  throw new Error("no free port was found");
}
