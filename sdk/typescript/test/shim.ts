// A browser-style WebSocket for runtimes without one, so that the path of Bun, Deno and browsers is tested on any Node.js.
import { randomBytes } from "node:crypto";
import { request } from "node:http";
import type { Duplex } from "node:stream";
import { FrameParser, encodeClose, encodeFrame, opcodes } from "../src/websocket/frames.js";

class ShimWebSocket {
  onopen: ((event: object) => void) | null = null;
  onmessage: ((event: { data: string | ArrayBuffer }) => void) | null = null;
  onerror: ((event: object) => void) | null = null;
  onclose: ((event: { code: number; reason: string }) => void) | null = null;
  binaryType = "blob";
  readyState = 0;
  protocol = "";
  readonly #parser = new FrameParser(1 << 30);
  #stream: Duplex | undefined;

  constructor(url: string, protocol: string) {
    const outgoing = request(url.replace(/^ws/, "http"), {
      agent: false,
      headers: { connection: "Upgrade", upgrade: "websocket", "sec-websocket-version": "13", "sec-websocket-key": randomBytes(16).toString("base64"), "sec-websocket-protocol": protocol },
    });
    const fail = (): void => {
      if (this.readyState === 3) return;
      this.readyState = 3;
      this.onerror?.({});
      this.onclose?.({ code: 1006, reason: "" });
    };
    outgoing.on("error", fail);
    outgoing.on("response", (response) => {
      response.resume();
      fail();
    });
    outgoing.on("upgrade", (response, stream, head) => {
      this.#stream = stream;
      this.protocol = String(response.headers["sec-websocket-protocol"] ?? "");
      this.readyState = 1;
      this.onopen?.({});
      const end = (): void => this.#end(1006, "");
      stream.on("data", (chunk: Buffer) => this.#data(chunk));
      stream.on("close", end);
      stream.on("error", end);
      setImmediate(() => this.#data(head)); // as a task of its own, like a runtime's events
    });
    outgoing.end();
  }

  get bufferedAmount(): number {
    return this.#stream?.writableLength ?? 0;
  }

  send(data: string | Uint8Array): void {
    const text = typeof data === "string";
    this.#write(text ? opcodes.text : opcodes.binary, text ? Buffer.from(data) : data);
  }

  close(code = 1000, reason = ""): void {
    if (this.readyState !== 1) return;
    this.readyState = 2;
    this.#write(opcodes.close, encodeClose(code, reason));
  }

  #write(opcode: number, payload: Uint8Array): void {
    this.#stream?.write(encodeFrame(opcode, payload, randomBytes(4)));
  }

  #data(chunk: Uint8Array): void {
    for (const incoming of this.#parser.push(chunk)) {
      if (incoming.type === "ping") this.#write(opcodes.pong, incoming.data);
      else if (incoming.type === "text") this.onmessage?.({ data: incoming.data });
      else if (incoming.type === "binary") this.onmessage?.({ data: new Uint8Array(incoming.data).buffer });
      else if (incoming.type === "close") {
        if (this.readyState === 1) this.#write(opcodes.close, encodeClose(1000, ""));
        this.#end(incoming.code, incoming.reason);
      }
    }
  }

  #end(code: number, reason: string): void {
    if (this.readyState === 3) return;
    this.readyState = 3;
    this.#stream?.end();
    this.onclose?.({ code, reason });
  }
}

/** Installs the shim where the runtime has no WebSocket. The answer takes it away again. */
export function useWebSocketShim(): () => void {
  const scope = globalThis as { WebSocket?: unknown };
  if (scope.WebSocket !== undefined) return () => undefined;
  scope.WebSocket = ShimWebSocket;
  return () => {
    delete scope.WebSocket;
  };
}
