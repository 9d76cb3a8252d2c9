// The server's side of RFC 6455, by hand: it masks nothing, demands masks, and can misbehave on request.
import { createHash } from "node:crypto";
import type { IncomingMessage } from "node:http";
import type { Duplex } from "node:stream";

export interface Frame {
  opcode: number;
  payload: Buffer;
}

export class ServerSocket {
  readonly stream: Duplex;
  #buffer = Buffer.alloc(0);
  readonly received: Frame[] = [];
  onFrame: (frame: Frame) => void = () => undefined;
  onClose: () => void = () => undefined;
  closeCode: number | undefined;

  constructor(req: IncomingMessage, stream: Duplex, head: Buffer, protocol = "cay.exec.v1", extra = "") {
    this.stream = stream;
    const accept = createHash("sha1").update(`${req.headers["sec-websocket-key"]}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest("base64");
    stream.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\nSec-WebSocket-Protocol: ${protocol}\r\n${extra}\r\n`);
    stream.on("data", (chunk: Buffer) => this.#data(chunk));
    stream.on("error", () => undefined);
    stream.on("close", () => this.onClose());
    if (head.length > 0) this.#data(head);
  }

  #data(chunk: Buffer): void {
    this.#buffer = Buffer.concat([this.#buffer, chunk]);
    for (;;) {
      const buffer = this.#buffer;
      if (buffer.length < 2) return;
      const short = (buffer[1] as number) & 0x7f;
      const header = short === 126 ? 4 : short === 127 ? 10 : 2;
      if (buffer.length < header + 4) return;
      const length = short === 126 ? buffer.readUInt16BE(2) : short === 127 ? Number(buffer.readBigUInt64BE(2)) : short;
      if (((buffer[1] as number) & 0x80) === 0) throw new Error("a client's frame is not masked");
      if (buffer.length < header + 4 + length) return;
      const mask = buffer.subarray(header, header + 4);
      const payload = Buffer.from(buffer.subarray(header + 4, header + 4 + length));
      for (let i = 0; i < payload.length; i++) payload[i] = (payload[i] as number) ^ (mask[i & 3] as number);
      this.#buffer = buffer.subarray(header + 4 + length);
      const frame = { opcode: (buffer[0] as number) & 0x0f, payload };
      this.received.push(frame);
      if (frame.opcode === 8) {
        this.closeCode = payload.length >= 2 ? payload.readUInt16BE(0) : 1005;
        this.frame(8, payload);
        this.stream.end();
      }
      if (frame.opcode === 9) this.frame(10, payload);
      this.onFrame(frame);
    }
  }

  frame(opcode: number, payload: Buffer, final = true): boolean {
    if (this.stream.destroyed || this.stream.writableEnded) return true;
    const header = payload.length < 126 ? Buffer.from([0, payload.length]) : payload.length < 65536 ? Buffer.alloc(4) : Buffer.alloc(10);
    if (header.length === 4) {
      header[1] = 126;
      header.writeUInt16BE(payload.length, 2);
    } else if (header.length === 10) {
      header[1] = 127;
      header.writeBigUInt64BE(BigInt(payload.length), 2);
    }
    header[0] = (final ? 0x80 : 0) | opcode;
    return this.stream.write(Buffer.concat([header, payload]));
  }

  json(message: unknown): void {
    this.frame(1, Buffer.from(JSON.stringify(message)));
  }

  async binary(channel: number, data: Buffer): Promise<void> {
    if (!this.frame(2, Buffer.concat([Buffer.from([channel]), data]))) {
      await new Promise<void>((resolve) => {
        const go = (): void => {
          this.stream.off("drain", go).off("close", go);
          resolve();
        };
        this.stream.on("drain", go).on("close", go);
      });
    }
  }

  close(code: number): void {
    const payload = Buffer.alloc(2);
    payload.writeUInt16BE(code);
    this.frame(8, payload);
  }

  /** Ends without a word, as a network does. */
  cut(): void {
    this.stream.destroy();
  }
}
