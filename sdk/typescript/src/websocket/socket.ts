import type { Client, Query } from "../client.js";

/** How a connection ended: the peer's close code, 1006 when there was none. */
export interface Closed {
  code: number;
  reason: string;
  error?: unknown;
}

/** What a connection tells its owner. Nothing comes after `closed`, which comes once. */
export interface SocketHandlers {
  message(data: string | Uint8Array): void;
  closed(how: Closed): void;
}

/** One open WebSocket. */
export interface Socket {
  /** Sends a message; resolves once more may be sent without piling up. A connection that has ended drops it. */
  send(data: string | Uint8Array): Promise<void>;
  /** Stops reading from the network. False: this kind of socket cannot, and messages keep coming. */
  pause(): boolean;
  resume(): void;
  /** Begins the close handshake. The connection ends within some seconds, whatever the peer does. */
  close(code: number, reason: string): void;
}

export interface OpenRequest {
  client: Client;
  path: string;
  query: Query;
  protocol: string;
  /** A message that the server answers, for sockets that cannot see its pings. */
  ping: string;
  signal: AbortSignal | undefined;
}

export type OpenSocket = (request: OpenRequest, handlers: SocketHandlers) => Promise<Socket>;

/** Largest message that the SDK accepts. The server's are 1 MiB, and a result of code carries files. */
export const maxMessage = 256 * 1024 * 1024;
