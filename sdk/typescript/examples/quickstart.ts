// The first steps: a sandbox, a command, its stream, files, a background process.
import { CaySandboxError, Sandbox } from "@cayhq/sandbox";

export async function main(): Promise<void> {
  // CAY_URL and CAY_API_KEY say where; `await using` ends the sandbox with this function.
  await using sandbox = await Sandbox.create({ memoryMb: 512, ttlSeconds: 600 });

  const result = await sandbox.exec("echo hello; id -un");
  console.log(result.ok, result.stdout);

  for await (const event of sandbox.execStream(["sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.2; done"])) {
    if (event.type === "stdout") process.stdout.write(event.data);
    if (event.type === "exit") console.log("exit code", event.exitCode);
  }

  await sandbox.files.write("/workspace/notes.txt", "from outside\n");
  console.log(await sandbox.files.readText("/workspace/notes.txt"));
  for await (const entry of sandbox.files.list("/workspace")) console.log(entry.mode, entry.size, entry.name);

  const server = await sandbox.processes.start("while :; do date; sleep 1; done", { name: "clock" });
  const logs = await sandbox.processes.logs("clock");
  console.log(server.status, logs.stdout);
  await sandbox.processes.kill("clock");

  try {
    await sandbox.files.read("/workspace/missing");
  } catch (error) {
    if (!(error instanceof CaySandboxError)) throw error;
    console.log(error.status, error.reason); // 404 not_found
  }
}

if (process.argv[1]?.endsWith("quickstart.js")) await main();
