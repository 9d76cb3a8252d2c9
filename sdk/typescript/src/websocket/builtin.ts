// A WebSocket client over node:http(s), for runtimes without one and for what theirs cannot do: send a header, hold the server back.
import type { ClientRequest, IncomingMessage } from "node:http";
import type { Duplex } from "node:stream";
import { toBytes } from "../bytes.js";
import { reasonOf } from "../client.js";
import { CaySandboxError, abortError, problemOf, throwIfAborted } from "../errors.js";
import { FrameParser, ProtocolError, encodeClose, encodeFrame, opcodes } from "./frames.js";
import { type Closed, type OpenRequest, type Socket, type SocketHandlers, maxMessage } from "./socket.js";

const handshakeTimeout = 30_000; // milliseconds
const closeTimeout = 3_000;
const silence = 50_000; // without a byte the connection is dead: the server pings every 15 s
const magic = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/** Opens a connection with the key in a header. A refusal is the server's own error. */
export async function openBuiltin(request: OpenRequest, handlers: SocketHandlers): Promise<Socket> {
  throwIfAborted(request.signal);
  const { createHash, randomBytes } = await import("node:crypto");
  const url = new URL(request.client.address(request.path, request.query));
  const http = url.protocol === "https:" ? await import("node:https") : await import("node:http");
  const nonce = randomBytes(16).toString("base64");
  const what = `GET ${request.path}`;
  const outgoing: ClientRequest = http.request(url, {
    method: "GET",
    agent: false,
    headers: {
      ...request.client.authorization(),
      connection: "Upgrade",
      upgrade: "websocket",
      "sec-websocket-version": "13",
      "sec-websocket-key": nonce,
      "sec-websocket-protocol": request.protocol,
    },
  });
  return await new Promise<Socket>((resolve, reject) => {
    const fail = (error: CaySandboxError): void => {
      done();
      outgoing.destroy();
      reject(error);
    };
    const timer = setTimeout(() => fail(new CaySandboxError(`${what}: no answer within ${handshakeTimeout / 1000} s`, { reason: "timeout" })), handshakeTimeout);
    const abort = (): void => fail(abortError(request.signal as AbortSignal));
    const done = (): void => {
      clearTimeout(timer);
      request.signal?.removeEventListener("abort", abort);
    };
    request.signal?.addEventListener("abort", abort, { once: true });
    outgoing.on("error", (error) => fail(new CaySandboxError(`${what}: ${reasonOf(error)}`, { reason: "connection_failed", cause: error })));
    outgoing.on("response", (response) => {
      refusal(response, what).then(fail, fail);
    });
    outgoing.on("upgrade", (response, stream, head) => {
      const expected = createHash("sha1").update(nonce + magic).digest("base64");
      const wrong = response.headers["sec-websocket-accept"] !== expected
        ? "the handshake's answer is wrong"
        : response.headers["sec-websocket-protocol"] !== request.protocol
          ? `the server does not speak ${request.protocol}`
          : response.headers["sec-websocket-extensions"] !== undefined ? "the server uses an extension that was not offered" : undefined;
      if (wrong !== undefined) {
        stream.destroy();
        fail(new CaySandboxError(`${what}: ${wrong}`, { status: 101, reason: "invalid_response" }));
        return;
      }
      done();
      resolve(new BuiltinSocket(stream, head, randomBytes, handlers));
    });
    outgoing.end();
  });
}

async function refusal(response: IncomingMessage, what: string): Promise<CaySandboxError> {
  let text = "";
  response.setEncoding("utf8");
  try {
    for await (const piece of response) {
      text += String(piece);
      if (text.length > 65536) break;
    }
  } catch {
    // A part is better than nothing.
  }
  const headers = { get: (name: string): string | null => [response.headers[name] ?? null].flat()[0] ?? null };
  return problemOf(response.statusCode ?? 0, headers, text, what);
}

class BuiltinSocket implements Socket {
  readonly #stream: Duplex & { setTimeout?: (ms: number) => void; setNoDelay?: (on: boolean) => void };
  readonly #randomBytes: (size: number) => Uint8Array;
  readonly #handlers: SocketHandlers;
  readonly #parser = new FrameParser(maxMessage);
  #paused = false;
  #waiting: Uint8Array[] = []; // came while paused
  #closeSent = false;
  #received: Closed | undefined;
  #ended = false;
  #closeTimer: ReturnType<typeof setTimeout> | undefined;
  #silenceTimer: ReturnType<typeof setTimeout> | undefined;

  constructor(stream: Duplex, head: Uint8Array, randomBytes: (size: number) => Uint8Array, handlers: SocketHandlers) {
    this.#stream = stream;
    this.#randomBytes = randomBytes;
    this.#handlers = handlers;
    this.#stream.setTimeout?.(0);
    this.#stream.setNoDelay?.(true);
    stream.on("data", (chunk: Uint8Array) => this.#data(chunk));
    stream.on("error", (error) => this.#end({ code: 1006, reason: "", error }));
    stream.on("end", () => this.#end({ code: 1006, reason: "" }));
    stream.on("close", () => this.#end({ code: 1006, reason: "" }));
    this.#listen();
    // After the caller has the socket: messages may come with the handshake.
    if (head.length > 0) queueMicrotask(() => this.#data(head));
  }

  send(data: string | Uint8Array): Promise<void> {
    if (this.#closeSent || this.#ended) return Promise.resolve();
    return this.#write(typeof data === "string" ? opcodes.text : opcodes.binary, toBytes(data));
  }

  pause(): boolean {
    this.#paused = true;
    clearTimeout(this.#silenceTimer); // pings are not read either
    this.#stream.pause();
    return true;
  }

  resume(): void {
    this.#paused = false;
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const chunk of waiting) this.#data(chunk);
    if (this.#paused || this.#ended) return;
    this.#listen();
    this.#stream.resume();
  }

  close(code: number, reason: string): void {
    if (this.#closeSent || this.#ended) return;
    this.#closeSent = true;
    void this.#write(opcodes.close, encodeClose(code, reason));
    this.#closeTimer = setTimeout(() => this.#end({ code: 1006, reason: "the server did not answer the close" }), closeTimeout);
    if (this.#paused) this.resume(); // or the answer would not be read
  }

  #write(opcode: number, payload: Uint8Array): Promise<void> {
    const frame = encodeFrame(opcode, payload, this.#randomBytes(4));
    if (this.#stream.write(frame)) return Promise.resolve();
    return new Promise((resolve) => {
      const go = (): void => {
        this.#stream.off("drain", go);
        this.#stream.off("close", go);
        resolve();
      };
      this.#stream.once("drain", go);
      this.#stream.once("close", go);
    });
  }

  #listen(): void {
    clearTimeout(this.#silenceTimer);
    this.#silenceTimer = setTimeout(() => this.#end({ code: 1006, reason: `nothing came for ${silence / 1000} s` }), silence);
  }

  #data(chunk: Uint8Array): void {
    if (this.#ended) return;
    if (this.#paused) {
      this.#waiting.push(chunk);
      return;
    }
    this.#listen();
    try {
      for (const incoming of this.#parser.push(chunk)) {
        switch (incoming.type) {
          case "text":
          case "binary":
            if (!this.#received) this.#handlers.message(incoming.data);
            break;
          case "ping":
            if (!this.#closeSent) void this.#write(opcodes.pong, incoming.data);
            break;
          case "close":
            this.#peerCloses(incoming);
            return;
          case "pong":
        }
      }
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      if (!this.#closeSent) void this.#write(opcodes.close, encodeClose(error.code, error.message));
      this.#end({ code: error.code, reason: error.message, error });
    }
  }

  #peerCloses(how: Closed): void {
    this.#received = { code: how.code, reason: how.reason };
    if (!this.#closeSent) {
      this.#closeSent = true;
      void this.#write(opcodes.close, how.code === 1005 ? new Uint8Array(0) : encodeClose(how.code, ""));
    }
    this.#end(this.#received);
  }

  /** The one end of the connection. What was written is still sent: end() flushes before it closes. */
  #end(how: Closed): void {
    if (this.#ended) return;
    this.#ended = true;
    clearTimeout(this.#closeTimer);
    clearTimeout(this.#silenceTimer);
    const stream = this.#stream;
    stream.end(() => stream.destroy());
    setTimeout(() => stream.destroy(), closeTimeout).unref?.();
    this.#handlers.closed(how);
  }
}
