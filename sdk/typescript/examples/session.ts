// A session: files that stay from one job to the next, whatever their language, and that need no sandbox to be read.
import { Session } from "@cayhq/sandbox";

export async function main(): Promise<void> {
  const session = await Session.create({ ttlSeconds: 3600, diskGb: 1 });
  try {
    await session.files.write("numbers.txt", "3\n1\n2\n");

    const sorted = await session.run({ language: "bash", code: "sort -n numbers.txt > sorted.txt && wc -l < sorted.txt" });
    console.log(sorted.status, sorted.stdout);

    const summed = await session.run({ language: "python", code: "print(sum(int(line) for line in open('sorted.txt')))" });
    console.log(summed.status, summed.stdout);

    console.log(await session.files.readText("sorted.txt"));
    for await (const entry of session.files.list()) console.log(entry.path, entry.size);
  } finally {
    await session.delete(); // its files go with it
  }
}

if (process.argv[1]?.endsWith("session.js")) await main();
