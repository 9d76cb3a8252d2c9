import { CaySandboxError } from "./errors.js";

const firstBackoff = 100; // milliseconds
const maxBackoff = 3_000;
const maxRetryAfter = 30; // seconds; a server that asks for more is answered to the caller instead

/** Doubles from 100 ms to 3 s; half of it is random, so that many clients don't come back together. */
export function backoff(attempt: number): number {
  const full = Math.min(firstBackoff * 2 ** Math.min(attempt, 10), maxBackoff);
  return full / 2 + (Math.random() * full) / 2;
}

/**
 * Milliseconds after which a request that failed with the error is worth another attempt; undefined when it is not. It does not know
 * whether repeating the request is safe.
 */
export function retryDelay(error: unknown, attempt: number): number | undefined {
  if (!(error instanceof CaySandboxError)) return undefined;
  if (!transient(error) || (error.retryAfter ?? 0) > maxRetryAfter) return undefined;
  return Math.max((error.retryAfter ?? 0) * 1000, backoff(attempt));
}

function transient(error: CaySandboxError): boolean {
  switch (error.status) {
    case 0:
      return error.reason === "connection_failed" || error.reason === "timeout" || error.reason === "stream_broken";
    case 429:
      return error.reason !== "quota_exceeded";
    case 503:
      return true;
    case 502:
    case 504:
      return error.reason === `http_${error.status}`; // a proxy's: the server itself names a reason
    default:
      return false;
  }
}

/** A fresh key that makes a POST safe to repeat: 128 random bits in hex. */
export async function newIdempotencyKey(): Promise<string> {
  const bytes = new Uint8Array(16);
  const crypto = (globalThis as { crypto?: Crypto }).crypto ?? ((await import("node:crypto")).webcrypto as Crypto); // Node.js 18 has no global
  crypto.getRandomValues(bytes);
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
