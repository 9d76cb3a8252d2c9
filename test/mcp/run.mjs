// Runs the tests against the server at CAY_URL (with CAY_API_KEY), else against one that is started from CAY_TEST_BIN and ended after
// them. Arguments choose files by part of their name. With CAY_TEST_REQUIRE_ALL=1 a skipped test is a failure.
import { spawn } from "node:child_process";
import { readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { startServer } from "./server.mjs";

const here = fileURLToPath(new URL(".", import.meta.url));
const only = process.argv.slice(2);
const files = readdirSync(here).filter((name) => name.endsWith(".test.mjs") && (only.length === 0 || only.some((part) => name.includes(part))));
if (files.length === 0) throw new Error(`no test file has a name with ${only.join(" or ")}`);
const given = process.env.CAY_URL && process.env.CAY_API_KEY;
const server = given ? { url: process.env.CAY_URL, apiKey: process.env.CAY_API_KEY, stop: async () => {} } : await startServer(process.env.CAY_TEST_BIN);

let child;
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => child?.kill(signal)); // the server is ended below all the same
let code = 1;
try {
  code = await new Promise((resolve, reject) => {
    child = spawn(process.execPath, ["--test", "--test-concurrency=2", "--test-reporter=spec", ...files.map((name) => here + name)], {
      stdio: ["ignore", "pipe", "inherit"],
      env: { ...process.env, CAY_URL: server.url, CAY_API_KEY: server.apiKey },
    });
    let output = "";
    child.stdout.on("data", (chunk) => {
      output += chunk;
      process.stdout.write(chunk);
    });
    child.once("error", reject);
    child.once("close", (status) => {
      const skipped = output.match(/^\s*﹣.*$/gm) ?? []; // the count at the end leaves out suites that are skipped as a whole
      if (skipped.length > 0 && process.env.CAY_TEST_REQUIRE_ALL === "1") {
        console.error(`CAY_TEST_REQUIRE_ALL=1: these were skipped\n${[...new Set(skipped)].join("\n")}`);
        status = 1;
      }
      resolve(status ?? 1);
    });
  });
} finally {
  await server.stop();
}
process.exit(code);
