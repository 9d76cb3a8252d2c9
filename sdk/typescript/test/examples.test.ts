// The examples as they are printed, run as programs against the fake and, where there is one, a real server.
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { type Target, fakeTarget, realMissing, realTarget } from "./target.js";

const root = fileURLToPath(new URL("../../", import.meta.url));
const run = promisify(execFile);

function examples(name: string, start: () => Promise<Target>, skip: string | undefined): void {
  describe(`the examples against ${name}`, { skip: skip ?? false }, () => {
    let target: Target;
    before(async () => void (target = await start()));
    after(() => target?.stop());
    const env = (): NodeJS.ProcessEnv => ({ ...process.env, CAY_URL: target.url, CAY_API_KEY: target.apiKey });

    it("quickstart", async (t) => {
      if (!target.has("POST", "/v1/sandboxes/{id}/processes")) return t.skip("the server starts no processes");
      const { stdout } = await run(process.execPath, [`${root}build/examples/quickstart.js`], { env: env() });
      assert.match(stdout, /true hello\n/);
      assert.match(stdout, /1\n2\n3\nexit code 0\n/);
      assert.match(stdout, /from outside/);
      assert.match(stdout, /notes\.txt/);
      assert.match(stdout, /404 not_found\n$/);
    });

    it("code interpreter: state, a chart or why there is none, and an error", async (t) => {
      if (!target.has("POST", "/v1/sandboxes/{id}/contexts")) return t.skip("the server has no contexts");
      const { stdout } = await run(process.execPath, [`${root}build/examples/code-interpreter.js`], { env: env() });
      assert.match(stdout, /value: '31'/);
      assert.match(stdout, /matplotlib is not installed here: no chart|image\/png, \d+ characters/);
      assert.match(stdout, /error: 'IndexError: list index out of range'/);
    });

    it("a first job", async (t) => {
      if (!target.has("POST", "/v1/jobs")) return t.skip("the server has no jobs");
      const { stdout } = await run(process.execPath, [`${root}build/examples/first-job.js`], { env: env() });
      assert.match(stdout, /^job_\w{26} (queued|running|success)\nsuccess 0 hello from sandbox\n\n\/output\/answer\.txt 42\n$/);
    });

    it("a session of two jobs", async (t) => {
      if (!target.has("POST", "/v1/sessions")) return t.skip("the server has no sessions");
      const { stdout } = await run(process.execPath, [`${root}build/examples/session.js`], { env: env() });
      assert.match(stdout, /^success \s*3\n\nsuccess 6\n\n1\n2\n3\n\n/);
      assert.match(stdout, /^\/session\/sorted\.txt 6$/m);
    });

    it("a job that is followed by two readers, one after the other", async (t) => {
      if (!target.has("GET", "/v1/jobs/{id}/stream")) return t.skip("the server has no streams of jobs");
      const { stdout } = await run(process.execPath, [`${root}build/examples/follow-job.js`], { env: env() });
      assert.equal(stdout, "line 1\nline 2\nline 3\nline 4\nline 5\nfailed with code 3\n");
    });

    it("what came of a sandbox that has ended", async (t) => {
      if (!target.has("GET", "/v1/history")) return t.skip("the server has no history");
      const { stdout } = await run(process.execPath, [`${root}build/examples/history.js`], { env: env() });
      assert.match(stdout, /READY/);
      assert.match(stdout, /TERMINATED/);
      assert.match(stdout, /it ran for [\d.]+ s and used [\d.]+ s of cpu\n$/);
    });

    it("terminal", async () => {
      const child = spawn(process.execPath, [`${root}build/examples/terminal.js`], { env: env(), stdio: ["pipe", "pipe", "inherit"] });
      let output = "";
      child.stdout.on("data", (data: Buffer) => (output += data.toString()));
      child.stdin.write("echo $((6*7))x; exit 3\n");
      const code = await new Promise((resolve) => child.on("exit", resolve));
      assert.match(output, /42x/);
      assert.equal(code, 3);
    });
  });
}

examples("the fake", fakeTarget, undefined);
examples("a real server", realTarget, realMissing());

describe("the documents", () => {
  for (const path of ["README.md", "../../docs/how-to/typescript-sdk.md"]) {
    it(`${path} prints programs that are run here`, () => {
      const text = readFileSync(new URL(path, `file://${root}`), "utf8");
      const printed = [...text.matchAll(/<!-- (examples\/[\w-]+\.ts)(?:#(\w+))? -->\n```ts\n([\s\S]*?)```/g)];
      assert.ok(printed.length > 0);
      for (const [, file, , code] of printed) {
        const source = readFileSync(new URL(file as string, `file://${root}`), "utf8");
        assert.ok(source.includes(code as string), `${file} differs from what ${path} prints`);
      }
    });
  }
});

describe("the package", () => {
  it("is what its name gives, built", async () => {
    const name = "@cayhq/sandbox";
    const built = (await import(name)) as Record<string, unknown>;
    assert.deepEqual(Object.keys(built).sort(), ["Audit", "CaySandboxError", "Events", "History", "Job", "Sandbox", "Server", "Session", "Usage", "createTar", "readTar"]);
    const { stdout } = await run(process.execPath, ["--input-type=module", "-e", `import { Sandbox } from "${name}"; console.log(typeof Sandbox.create)`], { cwd: root });
    assert.equal(stdout, "function\n");
  });

  it("declares types that are whole without the SDK's sources", async () => {
    const { default: ts } = await import("typescript");
    const program = ts.createProgram([`${root}dist/index.d.ts`], {
      strict: true, target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.NodeNext, lib: ["lib.es2022.d.ts", "lib.esnext.disposable.d.ts", "lib.dom.d.ts"], types: [],
    });
    const own = program.getSourceFiles().filter((file) => file.fileName.startsWith(`${root}dist/`));
    assert.ok(own.length > 10);
    assert.deepEqual(own.flatMap((file) => program.getSemanticDiagnostics(file)).map((found) => ts.flattenDiagnosticMessageText(found.messageText, " ")), []);
  });

  it("depends on nothing", () => {
    const manifest = JSON.parse(readFileSync(`${root}package.json`, "utf8")) as Record<string, unknown>;
    assert.equal(manifest["dependencies"], undefined);
  });
});
