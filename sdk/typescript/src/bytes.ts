// Conversions that every runtime does a little differently.

const encoder = new TextEncoder();

/** What stands for bytes in arguments; text is UTF-8. */
export type BytesLike = string | Uint8Array | ArrayBuffer;

/** Content that may be streamed. */
export type Content = BytesLike | Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array | string>;

export function toBytes(data: BytesLike): Uint8Array {
  if (typeof data === "string") return encoder.encode(data);
  return data instanceof Uint8Array ? data : new Uint8Array(data);
}

const buffer: { from(data: string | ArrayBufferLike, encoding?: string | number, length?: number): Uint8Array & { toString(encoding: string): string } } | undefined =
  (globalThis as { Buffer?: typeof buffer }).Buffer;

export function fromBase64(text: string): Uint8Array {
  if (buffer !== undefined) {
    const decoded = buffer.from(text, "base64");
    return new Uint8Array(decoded.buffer, decoded.byteOffset, decoded.byteLength);
  }
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

export function toBase64(bytes: Uint8Array): string {
  if (buffer !== undefined) return buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64");
  let binary = "";
  for (let i = 0; i < bytes.length; i += 0x8000) binary += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return btoa(binary);
}

export function concatBytes(parts: readonly Uint8Array[]): Uint8Array {
  let length = 0;
  for (const part of parts) length += part.length;
  const whole = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Iterates over the pieces of any content. Leaving the loop cancels a stream. */
export async function* pieces(content: Content): AsyncGenerator<Uint8Array> {
  if (typeof content === "string" || content instanceof Uint8Array || content instanceof ArrayBuffer) {
    yield toBytes(content);
  } else if (content instanceof Blob) {
    yield* pieces(content.stream());
  } else if ("getReader" in content) {
    const reader = content.getReader();
    let ended = false;
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) {
          ended = true;
          return;
        }
        yield value;
      }
    } finally {
      if (!ended) await reader.cancel().catch(() => undefined);
      reader.releaseLock();
    }
  } else {
    for await (const piece of content) yield toBytes(piece);
  }
}

/** A stream that pulls from an iterator; cancelling it ends the iterator. */
export function streamOf(source: AsyncIterable<Uint8Array>): ReadableStream<Uint8Array> {
  const iterator = source[Symbol.asyncIterator]();
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      for (;;) {
        const { done, value } = await iterator.next();
        if (done) return controller.close();
        if (value.length > 0) return controller.enqueue(value); // an empty chunk would end a chunked body
      }
    },
    async cancel() {
      await iterator.return?.();
    },
  });
}
