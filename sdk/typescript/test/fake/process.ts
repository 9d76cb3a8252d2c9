// Processes of the fake: real children of this test, in a temporary directory, with output kept by offset.
import { type ChildProcess, spawn } from "node:child_process";
import { EventEmitter } from "node:events";

export interface Chunk {
  stream: "stdout" | "stderr";
  data: Buffer;
  /** Of its first byte. */
  offset: number;
}

export interface StartFields {
  command: string | string[];
  stdin?: string | null;
  stdin_base64?: string;
  timeout_seconds?: number | null;
  env?: Record<string, string>;
  max_output_bytes?: number;
}

let counter = 0;
export const newId = (prefix: string): string => `${prefix}_${(++counter).toString(36).padStart(26, "0")}`;

export class FakeProcess extends EventEmitter {
  readonly id = newId("prc");
  readonly name: string | null;
  readonly tty: boolean;
  readonly command: string[];
  readonly startedAt = new Date();
  readonly chunks: Chunk[] = [];
  readonly cwd: string;
  readonly #kept: number;
  readonly #child: ChildProcess | undefined;
  size = 0;
  stdinOffset = 0;
  stdinOpen: boolean;
  exit: Record<string, unknown> | undefined;
  /** What a code run adds once it has ended. */
  result: Record<string, unknown> | undefined;
  #timedOut = false;
  #killed = false;

  constructor(fields: StartFields, options: { root: string; cwd: string; env: Record<string, string>; name?: string | null; tty?: boolean; stdinOpen: boolean; defaultTimeout: number | null }) {
    super();
    this.setMaxListeners(0);
    this.name = options.name ?? null;
    this.tty = options.tty ?? false;
    this.cwd = options.cwd;
    this.#kept = fields.max_output_bytes ?? 10 * 1024 * 1024;
    this.command = typeof fields.command === "string" ? ["/bin/sh", "-c", fields.command] : fields.command;
    this.stdinOpen = options.stdinOpen;
    const [file, ...args] = this.command as [string, ...string[]];
    const child = spawn(file, args, {
      cwd: options.root + options.cwd, env: { PATH: process.env["PATH"] ?? "", HOME: options.root, ...options.env, ...fields.env }, detached: true, stdio: "pipe",
    });
    this.#child = child;
    child.stdout.on("data", (data: Buffer) => this.#push("stdout", data));
    child.stderr.on("data", (data: Buffer) => this.#push(this.tty ? "stdout" : "stderr", data));
    child.stdin.on("error", () => undefined); // the process does not read it
    child.on("error", (error: NodeJS.ErrnoException) => {
      const code = error.code === "EACCES" ? 126 : 127;
      this.#push("stderr", Buffer.from(`${file}: ${code === 127 ? "not found" : "not executable"}\n`));
      this.#end({ exit_code: code, signal: null, reason: "start_failed", detail: error.message });
    });
    const timeout = fields.timeout_seconds === undefined ? options.defaultTimeout : fields.timeout_seconds;
    const timer = timeout === null ? undefined : setTimeout(() => {
      this.#timedOut = true;
      this.#signalTree("SIGKILL");
    }, timeout * 1000);
    child.on("close", (code, signal) => {
      clearTimeout(timer);
      const number = { SIGHUP: 1, SIGINT: 2, SIGKILL: 9, SIGSEGV: 11, SIGTERM: 15 }[signal as string] ?? 0;
      this.#end({
        exit_code: code ?? 128 + number, signal: signal?.slice(3) ?? null,
        reason: this.#timedOut ? "timeout" : this.#killed ? "killed" : signal === null ? "exited" : "signaled",
      });
    });
    const input = typeof fields.stdin === "string" ? Buffer.from(fields.stdin) : fields.stdin_base64 === undefined ? undefined : Buffer.from(fields.stdin_base64, "base64");
    if (input !== undefined) child.stdin.write(input);
    if (!options.stdinOpen) child.stdin.end();
  }

  #push(stream: "stdout" | "stderr", data: Buffer): void {
    this.chunks.push({ stream, data, offset: this.size });
    this.size += data.length;
    this.emit("output");
  }

  #end(how: Record<string, unknown>): void {
    if (this.exit !== undefined) return;
    const sizes = { stdout: this.bytes("stdout").length, stderr: this.bytes("stderr").length };
    this.exit = {
      process_id: this.id, ok: how["exit_code"] === 0 && !this.#timedOut, timed_out: this.#timedOut, killed: this.#killed, oom: false,
      duration_ms: Date.now() - this.startedAt.getTime(), stdout_size: sizes.stdout, stderr_size: sizes.stderr,
      truncated: { stdout: sizes.stdout > this.#kept, stderr: sizes.stderr > this.#kept }, lossy: { stdout: false, stderr: false }, ...how,
    };
    this.stdinOpen = false;
    this.emit("ended");
    this.emit("output");
  }

  bytes(stream: "stdout" | "stderr"): Buffer {
    return Buffer.concat(this.chunks.filter((chunk) => chunk.stream === stream).map((chunk) => chunk.data));
  }

  ended(): Promise<void> {
    return this.exit !== undefined ? Promise.resolve() : new Promise((resolve) => this.once("ended", resolve));
  }

  /** The chunks from an offset on, live. */
  async *read(offset: number): AsyncGenerator<Chunk> {
    for (let at = offset; ; ) {
      const next = this.chunks.find((chunk) => chunk.offset + chunk.data.length > at);
      if (next !== undefined) {
        const data = next.data.subarray(at - next.offset);
        yield { stream: next.stream, data, offset: at };
        at = next.offset + next.data.length;
      } else if (this.exit !== undefined) return;
      else await new Promise((resolve) => this.once("output", resolve));
    }
  }

  write(data: Buffer): void {
    this.stdinOffset += data.length;
    this.#child?.stdin?.write(data);
  }

  closeStdin(): void {
    this.stdinOpen = false;
    this.#child?.stdin?.end();
  }

  signal(name: string, tree: boolean): void {
    const signal = (name.startsWith("SIG") ? name : `SIG${name}`) as NodeJS.Signals;
    this.#killed ||= signal === "SIGKILL" || signal === "SIGTERM";
    if (tree) this.#signalTree(signal);
    else this.#child?.kill(signal);
  }

  #signalTree(signal: NodeJS.Signals): void {
    try {
      if (this.#child?.pid !== undefined) process.kill(-this.#child.pid, signal);
    } catch {
      // It has ended.
    }
  }

  /** The answer of a collected exec: head and tail of what exceeds the bound. */
  answer(encoding: string): Record<string, unknown> {
    const out: Record<string, unknown> = { ...this.exit };
    for (const stream of ["stdout", "stderr"] as const) {
      const whole = this.bytes(stream);
      const half = Math.floor(this.#kept / 2);
      const kept = whole.length > this.#kept ? Buffer.concat([whole.subarray(0, half), whole.subarray(whole.length - half)]) : whole;
      if (whole.length > kept.length) out[`${stream}_gap`] = { offset: half, bytes: whole.length - kept.length };
      out[encoding === "base64" ? `${stream}_base64` : stream] = kept.toString(encoding === "base64" ? "base64" : "utf8");
    }
    return { ...out, ...this.result };
  }

  get info(): Record<string, unknown> {
    const { exit } = this;
    return {
      id: this.id, pid: this.#child?.pid ?? 1, name: this.name, command: this.command, user: "sandbox", cwd: this.cwd, tty: this.tty,
      status: exit === undefined ? "running" : exit["reason"] === "start_failed" ? "failed" : "exited",
      exit_code: exit?.["exit_code"] ?? null, signal: exit?.["signal"] ?? null, reason: exit?.["reason"] ?? null,
      started_at: this.startedAt.toISOString(), ended_at: exit === undefined ? null : new Date().toISOString(), cpu_seconds: 0, memory_mb: 1,
    };
  }
}
