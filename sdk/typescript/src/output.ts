import { concatBytes } from "./bytes.js";

export type StreamName = "stdout" | "stderr";

/** Decodes the two streams of a process as UTF-8, so that a character split over chunks arrives whole. */
export class OutputDecoder {
  readonly #decoders = { stdout: new TextDecoder("utf-8", { ignoreBOM: true }), stderr: new TextDecoder("utf-8", { ignoreBOM: true }) };

  /** The text that a chunk completes. */
  decode(stream: StreamName, chunk: Uint8Array): string {
    return this.#decoders[stream].decode(chunk, { stream: true });
  }

  /** What is left of a character that will not be completed: "" or U+FFFD. */
  flush(stream: StreamName): string {
    return this.#decoders[stream].decode();
  }
}

/** Keeps the head and the tail of a stream, half of the bound each, and counts the rest. */
export class HeadAndTail {
  readonly #half: number;
  #head: Uint8Array[] = [];
  #headSize = 0;
  #tail: Uint8Array[] = [];
  #tailSize = 0;
  size = 0;

  constructor(bound: number) {
    this.#half = Math.max(1, Math.floor(bound / 2));
  }

  push(chunk: Uint8Array): void {
    this.size += chunk.length;
    const room = this.#half - this.#headSize;
    if (room > 0) {
      this.#head.push(chunk.subarray(0, room));
      this.#headSize += Math.min(room, chunk.length);
      chunk = chunk.subarray(room);
    }
    if (chunk.length === 0) return;
    this.#tail.push(chunk);
    this.#tailSize += chunk.length;
    while (this.#tail.length > 1 && this.#tailSize - (this.#tail[0] as Uint8Array).length >= this.#half) {
      this.#tailSize -= (this.#tail.shift() as Uint8Array).length;
    }
  }

  /** Counts bytes that were written and never arrived. */
  skip(bytes: number): void {
    this.size += bytes;
  }

  take(): { bytes: Uint8Array; missing: number } {
    const tail = concatBytes(this.#tail);
    const bytes = concatBytes([...this.#head, tail.subarray(Math.max(0, tail.length - this.#half))]);
    return { bytes, missing: this.size - bytes.length };
  }
}
