// A code interpreter as a tool for an agent: one sandbox a conversation, state between calls, and output, changed files and images back.
import { Sandbox } from "@cayhq/sandbox";

/** What the model is told of the tool; most providers take this form. */
export const definition = {
  name: "run_python",
  description: "Runs Python. Variables, imports and files stay between calls. Files for the user go to /output.",
  input_schema: { type: "object", properties: { code: { type: "string" } }, required: ["code"] },
} as const;

/** What goes back to the model. */
export interface ToolResult {
  stdout: string;
  stderr: string;
  /** Of an exception; null when there was none. */
  error: string | null;
  /** The value of the last expression. */
  value: string | null;
  files: string[];
  images: { mime: string; base64: string }[];
}

/** The tool of one conversation. */
export class CodeInterpreter implements AsyncDisposable {
  readonly #sandbox: Sandbox;
  readonly #contextId: string;

  private constructor(sandbox: Sandbox, contextId: string) {
    this.#sandbox = sandbox;
    this.#contextId = contextId;
  }

  static async start(): Promise<CodeInterpreter> {
    const sandbox = await Sandbox.create({ memoryMb: 1024, ttlSeconds: 3600, idleTimeout: 900 });
    try {
      return new CodeInterpreter(sandbox, (await sandbox.contexts.create({ language: "python" })).id);
    } catch (error) {
      await sandbox.close();
      throw error;
    }
  }

  async run(code: string, signal?: AbortSignal): Promise<ToolResult> {
    const result = await this.#sandbox.runCode(code, { contextId: this.#contextId, timeout: 60, signal });
    const images: ToolResult["images"] = [];
    for (const shown of result.results) {
      for (const [mime, data] of Object.entries(shown)) {
        if (mime.startsWith("image/") && typeof data === "string") images.push({ mime, base64: data });
      }
    }
    for (const file of result.outputs) {
      if (file.mime.startsWith("image/") && file.data) images.push({ mime: file.mime, base64: Buffer.from(file.data).toString("base64") });
    }
    return {
      stdout: result.stdout,
      stderr: result.stderr,
      error: result.timedOut ? "the code ran into its timeout" : result.error === null ? null : `${result.error.name}: ${result.error.value}`,
      value: result.results.find((shown) => shown.isMain)?.["text/plain"] ?? null,
      files: result.filesChanged.filter((file) => file.op !== "remove").map((file) => file.path),
      images,
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#sandbox.close();
  }
}

/** What a model would send, turn by turn. */
const turns = [
  "numbers = [3, 1, 4, 1, 5, 9, 2, 6]\nsum(numbers)",
  `
try:
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError:
    print("matplotlib is not installed here: no chart")
else:
    plt.bar(range(len(numbers)), numbers)
    plt.savefig("/output/chart.png")
    print("the chart is drawn")
`,
  "numbers[100]",
];

export async function main(): Promise<ToolResult[]> {
  await using interpreter = await CodeInterpreter.start();
  const results: ToolResult[] = [];
  for (const code of turns) {
    const result = await interpreter.run(code);
    results.push(result);
    console.log({ ...result, images: result.images.map((image) => `${image.mime}, ${image.base64.length} characters of base64`) });
  }
  return results;
}

if (process.argv[1]?.endsWith("code-interpreter.js")) await main();
