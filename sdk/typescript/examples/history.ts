// What a sandbox leaves behind once it has ended: its events, the records of what ran in it, and what it used.
import { Events, History, Sandbox, Usage } from "@cayhq/sandbox";

export async function main(): Promise<void> {
  const sandbox = await Sandbox.create({ memoryMb: 256, ttlSeconds: 600 });
  await sandbox.exec("echo hello; exit 3");
  await sandbox.close();

  // From the oldest event that is kept, or after the id of the last one seen: lost connections are mended within the loop.
  for await (const event of Events.follow({ types: "status" })) {
    if (!("data" in event) || event.sandboxId !== sandbox.id) continue;
    console.log(event.at, event.data["from"], "->", event.data["to"]);
    if (event.data["to"] === "TERMINATED") break;
  }

  // Records of commands come about a second after their end.
  for await (const record of History.list({ kind: ["exec", "code"], ok: false, from: new Date(Date.now() - 3_600_000) })) {
    console.log(record.endedAt, record.outcome, record.exitCode, `${record.durationMs} ms`, record.command);
  }

  const { total } = await Usage.get({ sandboxId: sandbox.id });
  console.log(`it ran for ${total.runningSeconds} s and used ${total.cpuSeconds} s of cpu`);
}

if (process.argv[1]?.endsWith("history.js")) await main();
