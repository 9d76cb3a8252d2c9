// Frames of RFC 6455, as a client reads and writes them. No extension is ever negotiated, so reserved bits are errors.
import { concatBytes } from "../bytes.js";

export const opcodes = { continuation: 0x0, text: 0x1, binary: 0x2, close: 0x8, ping: 0x9, pong: 0xa } as const;

/** A violation of the protocol; `code` is what the connection is closed with. */
export class ProtocolError extends Error {
  readonly code: number;

  constructor(code: number, message: string) {
    super(message);
    this.code = code;
  }
}

export type Incoming =
  | { type: "text"; data: string }
  | { type: "binary"; data: Uint8Array }
  | { type: "ping" | "pong"; data: Uint8Array }
  | { type: "close"; code: number; reason: string };

/** A whole frame with its payload masked, as every client's must be. */
export function encodeFrame(opcode: number, payload: Uint8Array, mask: Uint8Array): Uint8Array {
  const extended = payload.length < 126 ? 0 : payload.length < 65536 ? 2 : 8;
  const frame = new Uint8Array(2 + extended + 4 + payload.length);
  const view = new DataView(frame.buffer);
  frame[0] = 0x80 | opcode;
  if (extended === 0) frame[1] = 0x80 | payload.length;
  else if (extended === 2) {
    frame[1] = 0x80 | 126;
    view.setUint16(2, payload.length);
  } else {
    frame[1] = 0x80 | 127;
    view.setBigUint64(2, BigInt(payload.length));
  }
  const start = 2 + extended + 4;
  frame.set(mask, start - 4);
  for (let i = 0; i < payload.length; i++) frame[start + i] = (payload[i] as number) ^ (mask[i & 3] as number);
  return frame;
}

export function encodeClose(code: number, reason: string): Uint8Array {
  let text = new TextEncoder().encode(reason);
  if (text.length > 123) {
    let cut = 123;
    while (cut > 0 && ((text[cut] as number) & 0xc0) === 0x80) cut--; // not within a character
    text = text.slice(0, cut);
  }
  const payload = new Uint8Array(2 + text.length);
  new DataView(payload.buffer).setUint16(0, code);
  payload.set(text, 2);
  return payload;
}

/** Turns the bytes of a connection into messages and control frames. Memory is bounded by the largest message it accepts. */
export class FrameParser {
  readonly #maxMessage: number;
  #held: Uint8Array[] = [];
  #heldSize = 0;
  #fragments: Uint8Array[] = [];
  #fragmentsSize = 0;
  #fragmentType: "text" | "binary" | undefined;

  constructor(maxMessage: number) {
    this.#maxMessage = maxMessage;
  }

  /** What a chunk completes. It throws a {@link ProtocolError}, after which the parser is of no use. */
  *push(chunk: Uint8Array): Generator<Incoming> {
    this.#held.push(new Uint8Array(chunk.buffer, chunk.byteOffset, chunk.length)); // whatever subclass it is
    this.#heldSize += chunk.length;
    for (;;) {
      const frame = this.#frame();
      if (frame === undefined) return;
      const incoming = this.#take(frame.first, frame.payload);
      if (incoming !== undefined) yield incoming;
    }
  }

  /** The next whole frame, if it has arrived. */
  #frame(): { first: number; payload: Uint8Array } | undefined {
    if (this.#heldSize < 2) return undefined;
    const start = this.#peek(Math.min(this.#heldSize, 10));
    const first = start[0] as number;
    const second = start[1] as number;
    if ((first & 0x70) !== 0) throw new ProtocolError(1002, "reserved bits are set");
    if ((second & 0x80) !== 0) throw new ProtocolError(1002, "a server's frame is masked");
    const opcode = first & 0x0f;
    const control = opcode >= 8;
    if (opcode > 0xa || (opcode > 2 && opcode < 8)) throw new ProtocolError(1002, `unknown opcode ${opcode}`);
    if (control && ((first & 0x80) === 0 || (second & 0x7f) > 125)) throw new ProtocolError(1002, "a control frame is fragmented or too long");
    let length = second & 0x7f;
    let header = 2;
    if (length >= 126) {
      header = length === 126 ? 4 : 10;
      if (start.length < header) return undefined;
      const view = new DataView(start.buffer, start.byteOffset);
      const long = header === 4 ? BigInt(view.getUint16(2)) : view.getBigUint64(2);
      if (long < (header === 4 ? 126n : 65536n)) throw new ProtocolError(1002, "a length is not encoded in the shortest form");
      if (long > BigInt(this.#maxMessage)) throw new ProtocolError(1009, `a message of ${long} bytes is too large`);
      length = Number(long);
    }
    if (!control && this.#fragmentsSize + length > this.#maxMessage) throw new ProtocolError(1009, "a message is too large");
    if (this.#heldSize < header + length) return undefined;
    this.#consume(header);
    return { first, payload: this.#consume(length) };
  }

  #take(first: number, payload: Uint8Array): Incoming | undefined {
    const last = (first & 0x80) !== 0;
    switch (first & 0x0f) {
      case opcodes.ping:
        return { type: "ping", data: payload };
      case opcodes.pong:
        return { type: "pong", data: payload };
      case opcodes.close:
        return closing(payload);
      case opcodes.continuation:
        if (this.#fragmentType === undefined) throw new ProtocolError(1002, "a continuation without a beginning");
        break;
      default:
        if (this.#fragmentType !== undefined) throw new ProtocolError(1002, "a message begins within another");
        this.#fragmentType = (first & 0x0f) === opcodes.text ? "text" : "binary";
    }
    this.#fragments.push(payload);
    this.#fragmentsSize += payload.length;
    if (!last) return undefined;
    const data = this.#fragments.length === 1 ? payload : concatBytes(this.#fragments);
    const type = this.#fragmentType;
    this.#fragments = [];
    this.#fragmentsSize = 0;
    this.#fragmentType = undefined;
    return type === "text" ? { type, data: strictText(data) } : { type: "binary", data };
  }

  /** The first bytes, without taking them. */
  #peek(length: number): Uint8Array {
    if ((this.#held[0] as Uint8Array).length < length) this.#held = [concatBytes(this.#held)];
    return (this.#held[0] as Uint8Array).subarray(0, length);
  }

  #consume(length: number): Uint8Array {
    if (length === 0) return new Uint8Array(0);
    const out = this.#peek(length);
    const rest = (this.#held[0] as Uint8Array).subarray(length);
    if (rest.length > 0) this.#held[0] = rest;
    else this.#held.shift();
    this.#heldSize -= length;
    return out;
  }
}

function strictText(data: Uint8Array): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data);
  } catch {
    throw new ProtocolError(1007, "a text message is not UTF-8");
  }
}

function closing(payload: Uint8Array): Incoming {
  if (payload.length === 0) return { type: "close", code: 1005, reason: "" };
  if (payload.length === 1) throw new ProtocolError(1002, "a close frame has half a code");
  const code = new DataView(payload.buffer, payload.byteOffset).getUint16(0);
  const allowed = (code >= 1000 && code <= 1014 && ![1004, 1005, 1006].includes(code)) || (code >= 3000 && code <= 4999);
  if (!allowed) throw new ProtocolError(1002, `a close frame has the code ${code}`);
  return { type: "close", code, reason: strictText(payload.subarray(2)) };
}
