// The runtime's own WebSocket. It sets no headers everywhere, so the connection is authorized by a ticket, and it cannot be paused.
import { CaySandboxError, abortError, throwIfAborted } from "../errors.js";
import { type Closed, type OpenRequest, type Socket, type SocketHandlers } from "./socket.js";

const openTimeout = 30_000; // milliseconds
const highWater = 1024 * 1024; // bytes that wait to be sent before a sender is held back
const pingInterval = 15_000; // milliseconds
const silence = 50_000; // without a message, though pings are answered, the connection is dead
const pollInterval = 10; // milliseconds; there is no event for a drained buffer

export function hasNative(): boolean {
  return typeof (globalThis as { WebSocket?: unknown }).WebSocket === "function";
}

export async function openNative(request: OpenRequest, handlers: SocketHandlers): Promise<Socket> {
  throwIfAborted(request.signal);
  const { client } = request;
  const address = client.address(request.path, request.query);
  const { ticket } = await client.json<{ ticket: string }>({
    method: "POST", path: "/v1/tickets", json: { method: "GET", url: address.slice(client.url.length) }, signal: request.signal, repeatable: true,
  });
  const url = client.address(request.path, { ...request.query, ticket }).replace(/^http/, "ws");
  const ws = new WebSocket(url, request.protocol);
  ws.binaryType = "arraybuffer";
  try {
    await opened(ws, request);
  } catch (error) {
    if (error instanceof CaySandboxError && error.reason === "websocket_closed") throw (await explain(request)) ?? error;
    throw error;
  }
  if (ws.protocol !== request.protocol) {
    ws.close();
    throw new CaySandboxError(`GET ${request.path}: the server does not speak ${request.protocol}`, { status: 101, reason: "invalid_response" });
  }
  return new NativeSocket(ws, handlers, request.ping);
}

function opened(ws: WebSocket, request: OpenRequest): Promise<void> {
  return new Promise<void>((resolve, reject) => {
    const finish = (error?: CaySandboxError): void => {
      clearTimeout(timer);
      request.signal?.removeEventListener("abort", abort);
      ws.onopen = ws.onerror = ws.onclose = null;
      if (error === undefined) return resolve();
      ws.close();
      reject(error);
    };
    const failed = (): void => finish(new CaySandboxError(`GET ${request.path}: the WebSocket could not be opened`, { reason: "websocket_closed" }));
    const abort = (): void => finish(abortError(request.signal as AbortSignal));
    const timer = setTimeout(() => finish(new CaySandboxError(`GET ${request.path}: no answer within ${openTimeout / 1000} s`, { reason: "timeout" })), openTimeout);
    request.signal?.addEventListener("abort", abort, { once: true });
    ws.onopen = () => finish();
    ws.onerror = failed;
    ws.onclose = failed;
  });
}

/** Why the handshake was refused, which the runtime does not tell: the state of the sandbox says it in most cases. */
async function explain(request: OpenRequest): Promise<CaySandboxError | undefined> {
  const [, sandbox] = /^(\/v1\/sandboxes\/[^/]+)\//.exec(request.path) ?? [];
  if (sandbox === undefined) return undefined;
  try {
    const process = request.query["process_id"];
    const path = process === undefined ? `${sandbox}/processes` : `${sandbox}/processes/${encodeURIComponent(String(process))}`;
    await request.client.discard({ method: "GET", path, signal: request.signal });
    return undefined;
  } catch (error) {
    return error instanceof CaySandboxError && error.status > 0 ? error : undefined;
  }
}

class NativeSocket implements Socket {
  readonly #ws: WebSocket;

  constructor(ws: WebSocket, handlers: SocketHandlers, ping: string) {
    this.#ws = ws;
    let error: unknown;
    let heard = Date.now();
    let over = false;
    const finish = (how: Closed): void => {
      if (over) return;
      over = true;
      clearInterval(pinger);
      handlers.closed(how);
    };
    const pinger = setInterval(() => {
      if (Date.now() - heard > silence) {
        ws.close();
        finish({ code: 1006, reason: `nothing came for ${silence / 1000} s` });
      } else if (ws.readyState === 1) ws.send(ping);
    }, pingInterval);
    ws.onmessage = (event: MessageEvent<string | ArrayBuffer>) => {
      heard = Date.now();
      if (!over) handlers.message(typeof event.data === "string" ? event.data : new Uint8Array(event.data));
    };
    ws.onerror = (event) => {
      error = (event as { error?: unknown }).error ?? error;
    };
    ws.onclose = (event) => finish({ code: event.code, reason: event.reason, error });
  }

  async send(data: string | Uint8Array): Promise<void> {
    if (this.#ws.readyState !== 1) return;
    this.#ws.send(data as string);
    while (this.#ws.readyState === 1 && this.#ws.bufferedAmount > highWater) {
      await new Promise((resolve) => setTimeout(resolve, pollInterval));
    }
  }

  pause(): boolean {
    return false;
  }

  resume(): void {
    // It was never paused.
  }

  close(code: number, reason: string): void {
    if (this.#ws.readyState <= 1) this.#ws.close(code, reason);
  }
}
