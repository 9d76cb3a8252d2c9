// Removes build directories: a file whose source is gone must not linger in what is published or tested.
import { rmSync } from "node:fs";

for (const name of process.argv.slice(2)) {
  rmSync(new URL(`../${name}/`, import.meta.url), { recursive: true, force: true });
}
