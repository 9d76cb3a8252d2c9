/** What a {@link CaySandboxError} carries beyond its message. */
export interface ErrorDetails {
  status?: number;
  reason: string;
  body?: unknown;
  requestId?: string | undefined;
  retryAfter?: number | undefined;
  cause?: unknown;
}

/**
 * Every error of this package.
 *
 * `reason` is stable. It is the server's (see its API document), or one of the SDK's own, with status 0: `connection_failed`,
 * `timeout`, `aborted`, `invalid_argument`, `invalid_response`, `stream_broken`, `exec_error` (the server reported an error within
 * a live process; `body` is what it said), `websocket_closed` (the connection ended before the command did), `slow_consumer`,
 * `unsafe_archive`, `invalid_archive`.
 */
export class CaySandboxError extends Error {
  override name = "CaySandboxError";
  /** The HTTP status; 0 when no server answered. Of a live process it follows from the close code where there is one. */
  readonly status: number;
  readonly reason: string;
  /** What the server sent: the problem document, the event, or text. */
  readonly body: unknown;
  /** The server's id of the request, for its operator. */
  readonly requestId: string | undefined;
  /** Seconds after which the server asked to be tried again. */
  readonly retryAfter: number | undefined;

  constructor(message: string, details: ErrorDetails) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.status = details.status ?? 0;
    this.reason = details.reason;
    this.body = details.body;
    this.requestId = details.requestId;
    this.retryAfter = details.retryAfter;
  }
}

/** The error of an operation whose AbortSignal fired. Its name is `AbortError`, or `TimeoutError` for `AbortSignal.timeout`. */
export function abortError(signal: AbortSignal): CaySandboxError {
  const cause: unknown = signal.reason;
  const error = new CaySandboxError("the operation was aborted", { reason: "aborted", cause });
  error.name = cause instanceof Error && cause.name === "TimeoutError" ? "TimeoutError" : "AbortError";
  return error;
}

export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw abortError(signal);
}

export function invalidArgument(message: string): CaySandboxError {
  return new CaySandboxError(message, { reason: "invalid_argument" });
}

const maxErrorBody = 64 * 1024;

/** Reads an error answer: a problem document, or whatever a proxy put in its place. */
export async function errorOf(response: Response, what: string): Promise<CaySandboxError> {
  return problemOf(response.status, response.headers, await readBounded(response), what);
}

/** The reasons of answers that cannot say them, to a HEAD, where a status has only one that a HEAD can get. */
const wordless: Record<number, string> = {
  401: "unauthorized", 403: "forbidden", 404: "not_found", 410: "gone", 412: "precondition_failed", 422: "unprocessable", 429: "rate_limited", 503: "unavailable",
};

/** The error of an answer whose body has been read. */
export function problemOf(status: number, headers: { get(name: string): string | null }, text: string, what: string): CaySandboxError {
  let body: unknown = text;
  if (/[/+]json\b/.test(headers.get("content-type") ?? "")) {
    try {
      body = JSON.parse(text);
    } catch {
      // The text is kept.
    }
  }
  const problem = (typeof body === "object" && body !== null ? body : {}) as Record<string, unknown>;
  const say = (key: string): string | undefined => (typeof problem[key] === "string" && problem[key] !== "" ? problem[key] : undefined);
  return new CaySandboxError(`${what}: ${say("detail") ?? say("title") ?? `the server answered ${status}`}`, {
    status,
    reason: say("reason") ?? (text === "" ? wordless[status] : undefined) ?? `http_${status}`,
    body,
    requestId: say("request_id") ?? headers.get("x-request-id") ?? undefined,
    retryAfter: retryAfterOf(headers.get("retry-after")),
  });
}

/** Retry-After in seconds or as a date, as seconds from now. */
export function retryAfterOf(value: string | null): number | undefined {
  if (value === null) return undefined;
  if (/^\s*\d+\s*$/.test(value)) return Number(value);
  const at = Date.parse(value);
  return Number.isNaN(at) ? undefined : Math.max(0, (at - Date.now()) / 1000);
}

async function readBounded(response: Response): Promise<string> {
  if (response.body === null) return "";
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  try {
    while (text.length < maxErrorBody) {
      const { done, value } = await reader.read();
      if (done) break;
      text += decoder.decode(value, { stream: true });
    }
  } catch {
    // A part is better than nothing.
  }
  await reader.cancel().catch(() => undefined);
  return text.slice(0, maxErrorBody);
}
