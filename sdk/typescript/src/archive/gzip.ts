import { type Content, pieces, streamOf } from "../bytes.js";
import { CaySandboxError } from "../errors.js";

/** Compresses as the pieces come. */
export function gzip(content: Content): AsyncIterable<Uint8Array> {
  return through(content, new CompressionStream("gzip"));
}

/** The tar of an archive, whether it came compressed with gzip or not. What is damaged or cut short is an error. */
export async function* gunzipIfNeeded(content: Content): AsyncGenerator<Uint8Array> {
  const source = pieces(content);
  let head = new Uint8Array(0);
  while (head.length < 2) {
    const { done, value } = await source.next();
    if (done) break;
    const joined = new Uint8Array(head.length + value.length);
    joined.set(head);
    joined.set(value, head.length);
    head = joined;
  }
  const whole = (async function* (): AsyncGenerator<Uint8Array> {
    try {
      yield head;
      yield* source;
    } finally {
      await source.return(undefined);
    }
  })();
  if (head[0] !== 0x1f || head[1] !== 0x8b) {
    yield* whole;
    return;
  }
  try {
    yield* through(whole, new DecompressionStream("gzip"));
  } catch (error) {
    if (error instanceof CaySandboxError) throw error;
    throw new CaySandboxError("the archive is damaged or cut short", { reason: "invalid_archive", cause: error });
  }
}

function through(content: Content, transform: CompressionStream | DecompressionStream): AsyncGenerator<Uint8Array> {
  return pieces(streamOf(pieces(content)).pipeThrough(transform as unknown as ReadableWritablePair<Uint8Array, Uint8Array>));
}
