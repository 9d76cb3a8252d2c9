// A terminal in a sandbox: a login shell on your own terminal, raw, with its size followed. Leave with `exit`.
import { Sandbox } from "@cayhq/sandbox";

export async function main(stdin: NodeJS.ReadStream = process.stdin, stdout: NodeJS.WriteStream = process.stdout): Promise<number> {
  await using sandbox = await Sandbox.create({ ttlSeconds: 3600 });
  await using shell = await sandbox.terminal({ cols: stdout.columns ?? 80, rows: stdout.rows ?? 24 });
  const type = (data: Buffer): void => void shell.sendStdin(data).catch(() => undefined); // the loop below says why
  const end = (): void => void shell.closeStdin().catch(() => undefined);
  const resize = (): void => void shell.resize(stdout.columns, stdout.rows).catch(() => undefined);
  if (stdin.isTTY) stdin.setRawMode(true);
  stdin.on("data", type).on("end", end);
  stdout.on("resize", resize);
  try {
    for await (const event of shell) {
      if (event.type === "stdout") stdout.write(event.bytes);
      if (event.type === "exit") return event.exitCode;
    }
    return 1;
  } finally {
    stdin.off("data", type).off("end", end).pause();
    stdout.off("resize", resize);
    if (stdin.isTTY) stdin.setRawMode(false);
  }
}

if (process.argv[1]?.endsWith("terminal.js")) process.exitCode = await main();
