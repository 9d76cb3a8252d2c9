// Code and contexts of the fake: interpreters of this machine, and for contexts one python that keeps its state.
import { type ChildProcess, spawn } from "node:child_process";
import * as fs from "node:fs";
import { join, relative } from "node:path";
import { createInterface } from "node:readline";
import { Problem } from "./http.js";
import { newId } from "./process.js";

export const interpreters: Record<string, (code: string) => string[]> = {
  python: (code) => ["python3", "-c", code],
  javascript: (code) => [process.execPath, "-e", code],
  bash: (code) => ["bash", "-c", code],
  sh: (code) => ["sh", "-c", code],
};

const kernel = `
import ast, io, json, sys, traceback, contextlib
scope = {}
for line in sys.stdin:
    code = json.loads(line)
    out, answer = io.StringIO(), {"results": [], "error": None}
    try:
        tree = ast.parse(code)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(out):
            exec(compile(tree, "<cell>", "exec"), scope)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), scope)
                if value is not None:
                    answer["results"].append({"text/plain": repr(value), "application/json": value if isinstance(value, (int, str, list, dict)) else None, "is_main": True})
    except BaseException as e:
        answer["error"] = {"name": type(e).__name__, "value": str(e), "traceback": traceback.format_exc()}
    answer["stdout"] = out.getvalue()
    print(json.dumps(answer), flush=True)
`;

export class FakeContext {
  readonly id = newId("ctx");
  readonly language: string;
  readonly createdAt = new Date().toISOString();
  readonly #cwd: string;
  #child: ChildProcess | undefined;
  #answers: AsyncIterator<string> | undefined;
  #queue: Promise<unknown> = Promise.resolve();
  count = 0;
  busy = false;

  constructor(language: string, cwd: string) {
    if (language !== "python") throw new Problem(422, "unprocessable", `no contexts for ${language} here: python`);
    this.language = language;
    this.#cwd = cwd;
  }

  run(code: string): Promise<Record<string, unknown>> {
    const next = this.#queue.then(async () => {
      this.busy = true;
      if (this.#child === undefined) {
        this.#child = spawn("python3", ["-c", kernel], { cwd: this.#cwd, stdio: ["pipe", "pipe", "ignore"] });
        this.#answers = createInterface({ input: this.#child.stdout as NodeJS.ReadableStream })[Symbol.asyncIterator]();
      }
      this.#child.stdin?.write(`${JSON.stringify(code)}\n`);
      const { value, done } = await (this.#answers as AsyncIterator<string>).next();
      this.busy = false;
      this.count++;
      return done ? { stdout: "", results: [], error: { name: "KeyboardInterrupt", value: "", traceback: "" } } : JSON.parse(value) as Record<string, unknown>;
    });
    this.#queue = next.catch(() => undefined);
    return next;
  }

  interrupt(): void {
    if (this.busy) this.#child?.kill("SIGINT");
  }

  restart(): void {
    this.#child?.kill("SIGKILL");
    this.#child = undefined;
    this.count = 0;
  }

  get info(): Record<string, unknown> {
    return {
      id: this.id, language: this.language, cwd: "/workspace", user: "sandbox", status: this.busy ? "busy" : "idle", execution_count: this.count,
      created_at: this.createdAt, last_used_at: this.createdAt,
    };
  }
}

type Seen = Map<string, string>;

/** The files that code may change, with what tells a change. */
export function look(root: string): Seen {
  const seen: Seen = new Map();
  const below = (dir: string): void => {
    for (const entry of fs.readdirSync(dir, { withFileTypes: true })) {
      const path = join(dir, entry.name);
      if (entry.isDirectory()) below(path);
      else if (entry.isFile()) seen.set(`/${relative(root, path)}`, `${fs.statSync(path).mtimeMs} ${fs.statSync(path).size}`);
    }
  };
  for (const dir of ["workspace", "output", "home/sandbox"]) below(join(root, dir));
  return seen;
}

/** What changed since, and what of it lies in /output. */
export function changes(root: string, before: Seen): Record<string, unknown> {
  const now = look(root);
  const files: { path: string; size: number; op: string }[] = [];
  for (const [path, state] of now) {
    if (before.get(path) !== state) files.push({ path, size: fs.statSync(root + path).size, op: before.has(path) ? "write" : "create" });
  }
  for (const path of before.keys()) {
    if (!now.has(path)) files.push({ path, size: 0, op: "remove" });
  }
  const outputs = files.filter((f) => f.path.startsWith("/output/") && f.op !== "remove").map((f) => ({
    path: f.path, mime: f.path.endsWith(".png") ? "image/png" : "text/plain", size: f.size, data_base64: fs.readFileSync(root + f.path).toString("base64"),
  }));
  return { files_changed: files, files_truncated: false, outputs };
}
