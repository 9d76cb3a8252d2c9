// The output of a job as it is written. A lost connection or a restart of the server is mended within the loop; `seq` is enough to go on
// later, or elsewhere, with exactly what follows.
import { Job } from "@cayhq/sandbox";

export async function main(): Promise<void> {
  const { id } = await Job.submit({ language: "bash", code: "for i in 1 2 3 4 5; do echo line $i; sleep 0.2; done; exit 3" });

  let seq = 0;
  for await (const frame of (await Job.connect(id)).stream()) {
    seq = frame.seq;
    if (frame.type === "stdout") process.stdout.write(frame.data);
    if (frame.type === "stdout" && frame.data.includes("2")) break; // this reader goes away; the job runs on
  }

  for await (const frame of (await Job.connect(id)).stream({ seq })) {
    if (frame.type === "stdout" || frame.type === "stderr") process.stdout.write(frame.data);
    if (frame.type === "exit") console.log(frame.data, "with code", frame.exitCode);
    if (frame.type === "error") console.log(frame.data, frame.reason, frame.detail);
  }
}

if (process.argv[1]?.endsWith("follow-job.js")) await main();
