// Runs the compiled tests. With CAY_TEST_REQUIRE_ALL=1 a skipped test is a failure.
import { spawn } from "node:child_process";
import { readdirSync } from "node:fs";

const build = new URL("../build/test/", import.meta.url);
const only = process.argv.slice(2);
const files = readdirSync(build).filter((name) => name.endsWith(".test.js") && (only.length === 0 || only.some((part) => name.includes(part))));
const child = spawn(process.execPath, ["--test", "--test-reporter=spec", ...files.map((name) => new URL(name, build).pathname)], { stdio: ["ignore", "pipe", "inherit"] });
let output = "";
child.stdout.on("data", (chunk) => {
  output += chunk;
  process.stdout.write(chunk);
});
child.on("close", (code) => {
  const skipped = output.match(/^\s*﹣.*$/gm) ?? []; // the count at the end leaves out suites that are skipped as a whole
  if (skipped.length > 0 && process.env.CAY_TEST_REQUIRE_ALL === "1") {
    console.error(`CAY_TEST_REQUIRE_ALL=1: these were skipped\n${[...new Set(skipped)].join("\n")}`);
    process.exit(1);
  }
  process.exit(code ?? 1);
});
