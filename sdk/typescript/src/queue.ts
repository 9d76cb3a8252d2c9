import type { CodeEvent, GapEvent } from "./types.js";

const highWater = 1024 * 1024; // bytes held before the network is asked to stop
const overflow = 16 * 1024 * 1024; // bytes held when it cannot stop
const perEvent = 64; // bytes that an event counts for beside its output

/** What the queue asks of its source. */
export interface QueueSource {
  /** Stop sending; false: it cannot. */
  full(): boolean;
  drained(): void;
  /** It cannot stop, and nobody reads. */
  overflow(): void;
}

/**
 * The events of a live process between the network and a loop. Its memory is bounded: a source is paused, or fails where it cannot pause;
 * where only the end is awaited, what nobody reads is replaced by a gap.
 */
export class EventQueue {
  readonly #source: QueueSource;
  #events: CodeEvent[] = [];
  #size = 0;
  #paused = false;
  #reading = false;
  #discard = false;
  #ended = false;
  #error: unknown;
  #waiting: (() => void)[] = [];

  constructor(source: QueueSource) {
    this.#source = source;
  }

  push(event: CodeEvent): void {
    this.#events.push(event);
    this.#size += sizeOf(event);
    this.#wake();
    this.#balance();
  }

  /** No more events come; those that are there are still read. */
  end(): void {
    this.#ended = true;
    this.#wake();
  }

  /** As end, and reading them ends with the error. */
  fail(error: unknown): void {
    this.#error ??= error;
    this.end();
  }

  /** From now on somebody awaits the end: unread output must not hold it back. */
  discardWhenUnread(): void {
    this.#discard = true;
    this.#balance();
  }

  /** Reads the events. A second reader takes turns with the first. */
  async *iterate(): AsyncGenerator<CodeEvent, undefined, undefined> {
    this.#reading = true;
    for (;;) {
      const event = this.#events.shift();
      if (event !== undefined) {
        this.#size -= sizeOf(event);
        if (this.#paused && this.#size < highWater / 2) {
          this.#paused = false;
          this.#source.drained();
        }
        yield event;
      } else if (this.#error !== undefined) throw this.#error;
      else if (this.#ended) return undefined;
      else await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
  }

  #wake(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const wake of waiting) wake();
  }

  #balance(): void {
    if (this.#size <= highWater || this.#ended) return;
    if (this.#discard && !this.#reading) {
      this.#drop();
      if (this.#paused) {
        this.#paused = false;
        this.#source.drained();
      }
    } else if (!this.#paused) this.#paused = this.#source.full();
    if (!this.#paused && this.#size > overflow) this.#source.overflow();
  }

  /** Replaces the output that is held by one gap for each stream. */
  #drop(): void {
    const kept: CodeEvent[] = [];
    const gaps = new Map<string, GapEvent>();
    for (const event of this.#events) {
      if (event.type !== "stdout" && event.type !== "stderr" && event.type !== "gap") {
        kept.push(event);
        continue;
      }
      const stream = event.type === "gap" ? event.stream : event.type;
      const bytes = event.type === "gap" ? event.bytes : event.bytes.length;
      const gap = gaps.get(stream);
      if (gap !== undefined) gap.bytes += bytes;
      else {
        const fresh: GapEvent = { type: "gap", stream, offset: event.type === "gap" ? event.offset : event.offset - bytes, bytes };
        gaps.set(stream, fresh);
        kept.push(fresh);
      }
    }
    this.#events = kept;
    this.#size = kept.reduce((sum, event) => sum + sizeOf(event), 0);
  }
}

function sizeOf(event: CodeEvent): number {
  return perEvent + (event.type === "stdout" || event.type === "stderr" ? event.bytes.length : 0);
}
