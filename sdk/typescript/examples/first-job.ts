// A first job: code goes in, output and files come out. The server runs it once, whether or not anybody waits.
import { Job } from "@cayhq/sandbox";

export async function main(): Promise<void> {
  const job = await Job.submit({
    code: `
print("hello from sandbox")
open("/output/answer.txt", "w").write("42")
`,
    timeout: 30,
  });
  console.log(job.id, job.status);

  const done = await job.wait();
  console.log(done.status, done.exitCode, done.stdout);
  for (const file of done.outputs) console.log(file.path, new TextDecoder().decode(await job.readOutput(file.path)));
}

if (process.argv[1]?.endsWith("first-job.js")) await main();
