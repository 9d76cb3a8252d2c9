import { fromBase64 } from "./bytes.js";
import type { Client } from "./client.js";
import { collect, execFields, execResult, follow, startRequest } from "./exec.js";
import type * as wire from "./generated/wire.js";
import { camelize, defined } from "./names.js";
import type { CodeEvent, CodeOptions, CodeOutcome, CodeResult, RichResult } from "./types.js";

export function codeRequest(code: string, options: CodeOptions): wire.CodeRequest {
  return defined<wire.CodeRequest>({ code, language: options.language, context_id: options.contextId, ...execFields(options) });
}

/** Runs code to its end. */
export async function runCode(client: Client, sandbox: string, code: string, options: CodeOptions): Promise<CodeResult> {
  const answer = await collect(client, `${sandbox}/code`, codeRequest(code, options), options);
  const result = execResult(answer);
  return Object.assign(result, codeOutcome(answer));
}

/** Runs code and yields its events; the last one is `result`. */
export async function* runCodeStream(client: Client, sandbox: string, code: string, options: CodeOptions): AsyncGenerator<CodeEvent> {
  const start = await startRequest(`${sandbox}/code`, codeRequest(code, options), options);
  for await (const event of follow({ client, sandbox, start, last: "result", signal: options.signal })) {
    yield event.type === "result" ? { type: "result", ...codeOutcome(camelize(event.members)) } : event;
  }
}

/** What code left behind, from an answer whose members are renamed. */
export function codeOutcome(answer: Record<string, unknown>): CodeOutcome {
  const list = (name: string): Record<string, unknown>[] => (Array.isArray(answer[name]) ? (answer[name] as Record<string, unknown>[]) : []);
  return {
    language: String(answer["language"] ?? ""),
    contextId: (answer["contextId"] as string | null | undefined) ?? null,
    filesChanged: list("filesChanged") as unknown as CodeOutcome["filesChanged"],
    filesTruncated: answer["filesTruncated"] === true,
    outputs: list("outputs").map(({ dataBase64, ...file }) => ({
      ...(file as unknown as CodeOutcome["outputs"][number]),
      ...(typeof dataBase64 === "string" ? { data: fromBase64(dataBase64) } : {}),
    })),
    results: list("results").map(({ is_main: isMain, ...bundle }) => ({ ...bundle, isMain: isMain === true }) as RichResult),
    resultsTruncated: answer["resultsTruncated"] === true,
    error: (answer["error"] as CodeOutcome["error"] | undefined) ?? null,
    executionCount: Number(answer["executionCount"] ?? 0),
    contextLost: answer["contextLost"] === true,
  };
}
