import { type Client, type RequestOptions, brokenBody } from "./client.js";
import { CaySandboxError, abortError } from "./errors.js";

/** One server-sent event. `id` is the last one that the stream gave. */
export interface ServerEvent {
  event: string;
  data: string;
  id: string | undefined;
}

const maxEventLength = 256 * 1024 * 1024; // characters; a result carries 20 MiB of files and more in results
const silence = 50_000; // milliseconds without a byte; the server says something every 15 s

/**
 * Opens a stream of server-sent events and yields them until it ends. Leaving the loop closes the connection; a connection that
 * breaks, or is silent for 50 s, is an error with reason `stream_broken`. `opened` is called when the server has begun to answer.
 */
export async function* openEvents(client: Client, request: RequestOptions, opened?: () => void): AsyncGenerator<ServerEvent> {
  const closing = new AbortController();
  const forward = (): void => closing.abort(request.signal?.reason);
  if (request.signal?.aborted) throw abortError(request.signal);
  request.signal?.addEventListener("abort", forward, { once: true });
  try {
    const response = await client.send({ ...request, signal: closing.signal, headers: { ...request.headers, accept: "text/event-stream" } });
    if (!/^text\/event-stream\b/.test(response.headers.get("content-type") ?? "") || response.body === null) {
      throw new CaySandboxError(`${request.method} ${request.path}: the answer is no event stream`, { status: response.status, reason: "invalid_response" });
    }
    opened?.();
    yield* parseEvents(watched(response.body, closing, request));
  } catch (error) {
    if (request.signal?.aborted) throw abortError(request.signal);
    throw error;
  } finally {
    request.signal?.removeEventListener("abort", forward);
    closing.abort(); // ends the body even while a read is pending
  }
}

async function* watched(body: ReadableStream<Uint8Array>, closing: AbortController, request: RequestOptions): AsyncGenerator<Uint8Array> {
  const reader = body.getReader();
  let silent = false;
  try {
    for (;;) {
      const timer = setTimeout(() => {
        silent = true;
        closing.abort();
      }, silence);
      try {
        const { done, value } = await reader.read();
        if (done) return;
        yield value;
      } finally {
        clearTimeout(timer);
      }
    }
  } catch (error) {
    if (silent) throw new CaySandboxError(`${request.method} ${request.path}: the stream fell silent`, { reason: "stream_broken", cause: error });
    throw brokenBody(error, request);
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

/** Parses the text/event-stream format, as the HTML standard has it. An event that its stream cuts short is dropped. */
export async function* parseEvents(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<ServerEvent> {
  const decoder = new TextDecoder();
  let held: string[] = []; // of a line that has not ended: kept apart, so that a long one is joined once
  let heldLength = 0;
  let afterCR = false;
  let event = "";
  let data: string[] = [];
  let dataLength = 0;
  let id: string | undefined;
  for await (const chunk of chunks) {
    let text = decoder.decode(chunk, { stream: true });
    if (text === "") continue;
    if (afterCR && text.startsWith("\n")) text = text.slice(1);
    afterCR = text.endsWith("\r");
    const lines = text.split(/\r\n|\n|\r/);
    const last = lines.pop() as string;
    for (const piece of lines) {
      const line = held.length > 0 ? held.join("") + piece : piece;
      held = [];
      heldLength = 0;
      if (line === "") {
        if (data.length > 0) yield { event: event || "message", data: data.join("\n"), id };
        event = "";
        data = [];
        dataLength = 0;
        continue;
      }
      const colon = line.indexOf(":");
      if (colon === 0) continue;
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
      if (field === "data") {
        data.push(value);
        dataLength += value.length;
      } else if (field === "event") event = value;
      else if (field === "id" && !value.includes("\0")) id = value;
    }
    if (last !== "") {
      held.push(last);
      heldLength += last.length;
    }
    if (heldLength + dataLength > maxEventLength) throw new CaySandboxError("an event of the stream is larger than any that the API sends", { reason: "invalid_response" });
  }
}

/** The data of an event as an object. */
export function eventObject(event: ServerEvent): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(event.data);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch {
    // Said below.
  }
  throw new CaySandboxError(`an event ${event.event} is no JSON object`, { reason: "invalid_response", body: event.data.slice(0, 1024) });
}

/** The error that a stream's `error` event stands for. */
export function errorEvent(members: Record<string, unknown>, what: string): CaySandboxError {
  const reason = typeof members["reason"] === "string" ? members["reason"] : "stream_broken";
  const detail = typeof members["detail"] === "string" ? members["detail"] : reason;
  return new CaySandboxError(`${what}: ${detail}`, { reason, body: members });
}
