import { anySignal, delay } from "./abort.js";
import { type Client, type RequestOptions } from "./client.js";
import { CaySandboxError } from "./errors.js";
import { backoff } from "./retry.js";
import { errorEvent, eventObject, openEvents } from "./sse.js";
import type { FileOptions } from "./files.js";

export interface WatchOptions extends FileOptions {
  /** Also below its directories. */
  recursive?: boolean;
}

/** A change, or `overflow`: changes were lost, list again. `to` is where a rename went. */
export type WatchEvent =
  | { type: "create" | "write" | "remove" | "rename" | "chmod"; path: string; to?: string }
  | { type: "overflow" };

const maxReconnects = 8; // in a row

/** The changes of a watch that is armed. Leaving the loop ends it. */
export interface ArmedWatch extends AsyncIterable<WatchEvent>, AsyncDisposable {
  /** Ends it. */
  close(): Promise<void>;
}

/**
 * A watch of files. `await` it to know that it is armed, then loop over what that answers; or loop over it at once. A connection that
 * breaks is opened again, and an `overflow` says that changes were missed.
 */
export class Watch implements AsyncIterable<WatchEvent>, PromiseLike<ArmedWatch> {
  readonly #closing = new AbortController();
  readonly #events: AsyncGenerator<WatchEvent | "ready">;
  #armed: Promise<ArmedWatch> | undefined;

  /** @internal */
  constructor(client: Client, request: RequestOptions) {
    this.#events = watchEvents(client, { ...request, signal: anySignal(request.signal, this.#closing.signal) });
  }

  then<A = ArmedWatch, B = never>(onfulfilled?: ((watch: ArmedWatch) => A | PromiseLike<A>) | null, onrejected?: ((error: unknown) => B | PromiseLike<B>) | null): Promise<A | B> {
    this.#armed ??= this.#arm();
    return this.#armed.then(onfulfilled, onrejected);
  }

  [Symbol.asyncIterator](): AsyncIterator<WatchEvent> {
    return this.#changes();
  }

  async #arm(): Promise<ArmedWatch> {
    const first = await this.#events.next();
    if (first.done) throw new CaySandboxError("the watch ended before it was armed", { reason: "stream_broken" });
    const close = async (): Promise<void> => {
      this.#closing.abort(); // ends a read that is pending
      await this.#events.return(undefined);
    };
    return { [Symbol.asyncIterator]: () => this.#changes(), close, [Symbol.asyncDispose]: close };
  }

  async *#changes(): AsyncGenerator<WatchEvent> {
    try {
      for await (const event of this.#events) {
        if (event !== "ready") yield event;
      }
    } catch (error) {
      if (!this.#closing.signal.aborted) throw error;
    }
  }
}

async function* watchEvents(client: Client, request: RequestOptions): AsyncGenerator<WatchEvent | "ready"> {
  let wasArmed = false;
  for (let failures = 0; ; ) {
    let failure: unknown = new CaySandboxError(`GET ${request.path}: the watch ended`, { reason: "stream_broken" });
    try {
      for await (const event of openEvents(client, request)) {
        switch (event.event) {
          case "ready":
            failures = 0;
            yield wasArmed ? { type: "overflow" } : "ready";
            wasArmed = true;
            break;
          case "change":
            yield eventObject(event) as WatchEvent;
            break;
          case "overflow":
            yield { type: "overflow" };
            break;
          case "error":
            throw errorEvent(eventObject(event), "the watch");
          default: // of a newer server
        }
      }
    } catch (error) {
      failure = error;
    }
    const again = failure instanceof CaySandboxError && failure.status === 0 && ["stream_broken", "connection_failed", "unavailable"].includes(failure.reason);
    if (!wasArmed || !again || ++failures > maxReconnects) throw failure;
    await delay(backoff(failures - 1), request.signal);
  }
}
