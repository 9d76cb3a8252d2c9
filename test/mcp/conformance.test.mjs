// The public conformance suite for MCP servers, in each revision that it has scenarios for.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import fs from "node:fs";
import http from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { apiKey, url } from "./clients.mjs";
import { picture } from "./programs.mjs";

const here = fileURLToPath(new URL(".", import.meta.url));
const suite = `${here}node_modules/@modelcontextprotocol/conformance/dist/index.js`;
const timeout = 300_000; // milliseconds

// What has to be among the scenarios of a revision and pass: a suite that runs nothing passes as well.
const revisions = [
  { revision: "2025-06-18", passes: ["server-initialize", "ping", "tools-list", "tools-call-simple-text", "tools-call-image", "tools-call-error", "tools-call-with-progress"] },
  { revision: "2025-11-25", passes: ["server-initialize", "ping", "tools-list", "tools-call-error", "tools-call-with-progress", "tools-call-mixed-content", "dns-rebinding-protection"] },
  {
    revision: "2026-07-28",
    passes: ["tools-list", "tools-call-image", "tools-call-embedded-resource", "tools-call-error", "tools-call-with-progress", "dns-rebinding-protection", "http-header-validation"],
  },
];

// Tools of Cay that stand in for those of the suite's example server, since they answer with the same kinds of content.
const drawing = `open("/output/drawing.svg", "w").write('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><circle r="9"/></svg>')`;
const standIns = {
  test_simple_text: { name: "run_command", arguments: { command: "echo This is a simple text response for testing." } },
  test_image_content: { name: "run_code", arguments: { code: picture } },
  test_embedded_resource: { name: "run_code", arguments: { code: drawing } },
  test_multiple_content_types: { name: "run_code", arguments: { code: `${drawing}\n${picture}` } },
  test_error_handling: { name: "get_sandbox", arguments: { sandbox_id: "sbx_00000000000000000000000000" } },
  test_tool_with_progress: { name: "run_command", arguments: { command: "for i in 1 2 3 4; do echo step $i; sleep 1; done" } },
};

describe("the conformance suite", () => {
  let proxy, address;
  const excused = new Set(); // checks of conformance.yml that did fail
  before(async () => {
    proxy = http.createServer(forward);
    await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
    address = `http://127.0.0.1:${proxy.address().port}/mcp`;
  });
  after(() => proxy.close());

  for (const { revision, passes } of revisions) {
    it(`passes as of ${revision}, but for what conformance.yml says does not apply`, { timeout }, async () => {
      const results = fs.mkdtempSync(join(tmpdir(), "cay-mcp-conformance-"));
      try {
        const args = ["server", "--url", address, "--suite", "all", "--spec-version", revision, "--timeout", "120000", "--output-dir", results];
        const { code, output } = await run(args.concat("--expected-failures", `${here}conformance.yml`));
        assert.equal(code, 0, `${output.slice(output.indexOf("=== SUMMARY"))}\n${failures(results)}`);
        for (const [, check] of output.matchAll(/^ {2}~ (\S+)$/gm)) excused.add(check);
        for (const scenario of passes) assert.match(output, new RegExp(`^✓ ${scenario}: [1-9]`, "m"));
      } finally {
        fs.rmSync(results, { recursive: true });
      }
    });
  }

  it("leaves out nothing without a reason, and nothing that does not fail in any revision", () => {
    const entries = fs.readFileSync(`${here}conformance.yml`, "utf8").match(/^ +- .*$/gm);
    assert.ok(entries.length > 0);
    for (const entry of entries) assert.match(entry, /^ {2}- [\w-]+:[\w-]+ # \w.{8,}$/, "one check of a scenario and why it does not apply");
    assert.deepEqual(entries.map((entry) => entry.split(" ")[3]).sort(), [...excused].sort());
  });
});

function run(args) {
  const node = fs.globSync === undefined ? ["--import", `${here}globsync.mjs`] : [];
  return new Promise((resolve) => {
    execFile(process.execPath, [...node, suite, ...args], { cwd: here, timeout, maxBuffer: 64 << 20, env: { ...process.env, NO_COLOR: "1" } }, (error, stdout, stderr) =>
      resolve({ code: error ? (error.code ?? error.signal) : 0, output: stdout + stderr }),
    );
  });
}

/** What each check that failed said. */
function failures(results) {
  const lines = [];
  for (const scenario of fs.readdirSync(results)) {
    for (const check of JSON.parse(fs.readFileSync(join(results, scenario, "checks.json"), "utf8"))) {
      if (["FAILURE", "WARNING"].includes(check.status)) lines.push(`${scenario} ${check.id}: ${check.errorMessage ?? JSON.stringify(check.details)}`);
    }
  }
  return lines.join("\n");
}

/** Passes a request on with the key, which the suite cannot send, and the name of a tool that there is. */
async function forward(request, response) {
  try {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const headers = { ...request.headers, authorization: `Bearer ${apiKey}`, "cay-conversation": "conformance" };
    const body = translated(Buffer.concat(chunks), headers);
    if (request.headers["content-length"] !== undefined) headers["content-length"] = body.length;
    const target = new URL(url);
    const onward = http.request({ host: target.hostname, port: target.port, path: request.url, method: request.method, headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    onward.on("error", () => response.destroy());
    response.on("close", () => onward.destroy());
    onward.end(body);
  } catch {
    response.destroy();
  }
}

function translated(body, headers) {
  let message;
  try {
    message = JSON.parse(body.toString());
  } catch {
    return body; // broken on purpose
  }
  const standIn = message?.method === "tools/call" && standIns[message.params?.name];
  if (!standIn) return body;
  if (headers["mcp-name"] === message.params.name) headers["mcp-name"] = standIn.name;
  return Buffer.from(JSON.stringify({ ...message, params: { ...message.params, ...standIn } }));
}
