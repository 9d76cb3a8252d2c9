// With --import on Node.js 20: the conformance suite imports fs.globSync, which came with Node.js 22, for a command that is not used here.
import { register } from "node:module";
import { isMainThread } from "node:worker_threads";

if (isMainThread) register(import.meta.url);

export async function load(url, context, next) {
  const module = await next(url, context);
  if (!url.includes("/@modelcontextprotocol/conformance/dist/")) return module;
  return { ...module, source: String(module.source).replace("globSync as ", "existsSync as ") };
}
