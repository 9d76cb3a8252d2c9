import assert from "node:assert/strict";
import { after, before, beforeEach, describe, it } from "node:test";
import { Sandbox } from "../src/index.js";
import { FrameParser, ProtocolError, encodeClose, encodeFrame, opcodes } from "../src/websocket/frames.js";
import { FakeServer } from "./fake/server.js";
import type { ServerSocket } from "./fake/websocket.js";
import { useWebSocketShim } from "./shim.js";
import { collect, fails, until } from "./suite/expect.js";

const bytes = (...values: number[]): Uint8Array => Uint8Array.from(values);

function parse(...chunks: Uint8Array[]): unknown[] {
  const parser = new FrameParser(1024 * 1024);
  return chunks.flatMap((chunk) => [...parser.push(chunk)]);
}

function violation(...chunks: Uint8Array[]): number {
  try {
    parse(...chunks);
  } catch (error) {
    assert.ok(error instanceof ProtocolError);
    return error.code;
  }
  return assert.fail("the frames were accepted");
}

describe("frames", () => {
  it("are read whole, byte by byte, and several at once", () => {
    const frames = bytes(0x81, 2, 0x68, 0x69, 0x82, 1, 7, 0x89, 0);
    const expected = [{ type: "text", data: "hi" }, { type: "binary", data: bytes(7) }, { type: "ping", data: bytes() }];
    assert.deepEqual(parse(frames), expected);
    assert.deepEqual(parse(...[...frames].map((byte) => bytes(byte))), expected);
  });

  it("are joined from fragments, with control frames between them", () => {
    assert.deepEqual(parse(bytes(0x01, 2, 0xc3, 0xa9), bytes(0x8a, 0), bytes(0x00, 1, 0x61), bytes(0x80, 1, 0x62)), [{ type: "pong", data: bytes() }, { type: "text", data: "éab" }]);
  });

  it("have lengths of every form", () => {
    for (const length of [125, 126, 65535, 65536, 200_000]) {
      const frame = encodeFrame(opcodes.binary, new Uint8Array(length).fill(9), bytes(0, 0, 0, 0));
      const mask = length < 126 ? 2 : length < 65536 ? 4 : 10;
      const unmasked = new Uint8Array([...frame.subarray(0, mask), ...frame.subarray(mask + 4)]);
      unmasked[1] = (unmasked[1] as number) & 0x7f;
      assert.deepEqual(parse(unmasked), [{ type: "binary", data: new Uint8Array(length).fill(9) }]);
    }
  });

  it("are masked when a client writes them", () => {
    const frame = encodeFrame(opcodes.text, new TextEncoder().encode("Hello"), bytes(0x37, 0xfa, 0x21, 0x3d));
    assert.deepEqual(frame, bytes(0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58)); // RFC 6455, 5.7
  });

  it("that break the protocol are refused with the right code", () => {
    assert.equal(violation(bytes(0xc1, 0)), 1002, "a reserved bit");
    assert.equal(violation(bytes(0x83, 0)), 1002, "a reserved opcode");
    assert.equal(violation(bytes(0x8b, 0)), 1002, "a reserved control opcode");
    assert.equal(violation(bytes(0x81, 0x80, 0, 0, 0, 0)), 1002, "a mask");
    assert.equal(violation(bytes(0x09, 0)), 1002, "a fragmented ping");
    assert.equal(violation(bytes(0x89, 126, 0, 126)), 1002, "a long ping");
    assert.equal(violation(bytes(0x80, 0)), 1002, "a continuation of nothing");
    assert.equal(violation(bytes(0x01, 0), bytes(0x81, 0)), 1002, "a message within a message");
    assert.equal(violation(bytes(0x82, 126, 0, 1, 0)), 1002, "a length that is longer than needed");
    assert.equal(violation(bytes(0x81, 1, 0xff)), 1007, "text that is not UTF-8");
    assert.equal(violation(bytes(0x82, 127, 0, 0, 0, 1, 0, 0, 0, 0)), 1009, "a message of 4 GiB");
    assert.equal(violation(bytes(0x82, 127, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)), 1009, "a length beyond all numbers");
    assert.equal(violation(bytes(0x88, 1, 3)), 1002, "half a close code");
    assert.equal(violation(bytes(0x88, 2, 3, 0xed)), 1002, "a close code that must not be sent");
  });

  it("of a fragmented message are bounded together", () => {
    const parser = new FrameParser(10);
    assert.deepEqual([...parser.push(bytes(0x02, 6, 1, 2, 3, 4, 5, 6))], []);
    assert.throws(() => [...parser.push(bytes(0x80, 6))], (error: ProtocolError) => error.code === 1009);
  });

  it("of any bytes at all are an error or messages, never a hang", () => {
    let seed = 42;
    const random = (): number => (seed = (seed * 1103515245 + 12345) % 2147483648) % 256;
    for (let round = 0; round < 2000; round++) {
      try {
        parse(Uint8Array.from({ length: 1 + (random() % 40) }, random));
      } catch (error) {
        assert.ok(error instanceof ProtocolError);
      }
    }
  });

  it("for a close cut its reason between characters", () => {
    const payload = encodeClose(1000, "é".repeat(100));
    assert.ok(payload.length <= 125);
    new TextDecoder("utf-8", { fatal: true }).decode(payload.subarray(2));
  });
});

describe("a live process whose server misbehaves", () => {
  let fake: FakeServer;
  let sandbox: Sandbox;
  before(async () => {
    fake = await FakeServer.start();
    sandbox = await Sandbox.create({ url: fake.url, apiKey: fake.key });
  });
  after(() => fake.stop());
  beforeEach(() => void (fake.faults.length = 0));

  /** A live process whose server does as it is told once it has started. */
  async function live(then: (socket: ServerSocket) => void) {
    fake.faults.push({ match: /\/exec/, upgrade: (socket) => {
      socket.onFrame = (frame) => {
        if (frame.opcode !== 1 || !frame.payload.includes('"start"')) return;
        socket.json({ type: "started", process_id: "prc_x", offset: 0, stdin_offset: 0 });
        then(socket);
      };
    } });
    return await sandbox.execWs("x", { transport: "builtin" });
  }

  it("fails with websocket_closed when the connection breaks, and says where to attach", async () => {
    const cut = await live((socket) => {
      void socket.binary(1, Buffer.from("part"));
      setTimeout(() => socket.cut(), 50);
    });
    const error = await fails(cut.wait());
    assert.equal(error.reason, "websocket_closed");
    assert.deepEqual(error.body, { code: 1006, reason: "", processId: "prc_x", offset: 4 });
    const looped = await fails(collect(cut));
    assert.equal(looped, error);
  });

  it("fails with websocket_closed when the server closes before the exit", async () => {
    const closed = await live((socket) => socket.close(1012));
    assert.equal((await fails(closed.wait())).reason, "websocket_closed");
  });

  it("fails with exec_error and the status of the close code", async () => {
    const refused = await live((socket) => {
      socket.json({ type: "error", reason: "slow_consumer", detail: "too slow" });
      socket.close(4409);
    });
    const error = await fails(refused.wait());
    assert.equal(error.reason, "exec_error");
    assert.equal(error.status, 409);
    assert.deepEqual(error.body, { reason: "slow_consumer", detail: "too slow" });
  });

  it("closes with 1002 when the protocol is broken", async () => {
    let server: ServerSocket | undefined;
    const broken = await live((socket) => {
      server = socket;
      socket.stream.write(bytes(0xc1, 0));
    });
    assert.equal((await fails(broken.wait())).reason, "websocket_closed");
    await until(() => server?.closeCode !== undefined, "the close frame arrived");
    assert.equal(server?.closeCode, 1002);
  });

  it("answers pings and joins fragments", async () => {
    const pinged = await live((socket) => {
      const onFrame = socket.onFrame;
      socket.frame(9, Buffer.from("are you there"));
      socket.frame(2, Buffer.from([1, 0x61]), false);
      socket.frame(0, Buffer.from([0x62]), true);
      socket.onFrame = (frame) => {
        onFrame(frame);
        if (frame.opcode !== 10 || frame.payload.toString() !== "are you there") return;
        socket.json({ type: "exit", process_id: "prc_x", exit_code: 0, ok: true, truncated: {} });
        socket.close(1000);
      };
    });
    assert.equal((await pinged.wait()).stdout, "ab");
  });

  it("closes with 1000 after the exit, and ends the connection", async () => {
    let server: ServerSocket | undefined;
    const ended = await live((socket) => {
      server = socket;
      socket.json({ type: "exit", process_id: "prc_x", exit_code: 0, ok: true });
    });
    await ended.wait();
    await until(() => server?.closeCode === 1000, "the client closed");
    await assert.rejects(() => ended.sendStdin("late"), { reason: "websocket_closed" });
  });

  it("ignores what a newer server says", async () => {
    const newer = await live((socket) => {
      socket.json({ type: "weather", sunny: true });
      void socket.binary(9, Buffer.from("?"));
      socket.json({ type: "exit", process_id: "prc_x", exit_code: 0, ok: true });
    });
    assert.equal((await newer.wait()).exitCode, 0);
  });

  it("holds the server back while nobody reads", async () => {
    let sent = 0;
    let server: ServerSocket | undefined;
    const unread = await live((socket) => {
      server = socket;
      const more = async (): Promise<void> => {
        while (sent < 64 * 1024 * 1024 && !socket.stream.destroyed) {
          await socket.binary(1, Buffer.alloc(64 * 1024));
          sent += 64 * 1024;
        }
      };
      void more();
    });
    let before = -1;
    await until(async () => {
      const still = sent === before;
      before = sent;
      await new Promise((resolve) => setTimeout(resolve, 200));
      return still;
    }, "the server is held back");
    assert.ok(sent < 32 * 1024 * 1024, `${sent} bytes were taken`);
    unread.close();
    await until(() => server?.stream.destroyed === true, "the connection ended");
  });

  it("with a socket that cannot be paused fails as a slow consumer", async () => {
    const restore = useWebSocketShim();
    try {
      const slow = await sandbox.execWs("head -c 40000000 /dev/zero", { transport: "native" });
      const error = await fails((async () => {
        for await (const event of slow) {
          if (event.type === "stdout") await until(() => slow.signal("CONT").then(() => false, () => true), "the loop gave up");
        }
      })());
      assert.equal(error.reason, "slow_consumer");
    } finally {
      restore();
    }
  });

  it("is refused with the server's own error before the upgrade", async () => {
    for (const transport of ["builtin", "native"] as const) {
      const restore = useWebSocketShim();
      try {
        const gone = await Sandbox.create({ url: fake.url, apiKey: fake.key });
        await gone.close();
        const error = await fails(gone.execWs("true", { transport }));
        assert.equal(error.status, 410, transport);
        assert.equal(error.reason, "gone");
      } finally {
        restore();
      }
    }
    assert.equal((await fails(Sandbox.connect(sandbox.id, { url: fake.url, apiKey: "cay_no" }))).status, 401);
  });

  it("is refused when the server speaks another protocol", async () => {
    fake.faults.push({ match: /\/exec/, protocol: "Sec-WebSocket-Extensions: permessage-deflate\r\n" });
    assert.equal((await fails(sandbox.execWs("true", { transport: "builtin" }))).reason, "invalid_response");
  });

  it("sends the key in a header, or a ticket and no key", async () => {
    fake.requests.length = 0;
    await (await sandbox.execWs("true", { transport: "builtin" })).wait();
    assert.equal(fake.requests[0]?.headers.authorization, `Bearer ${fake.key}`);
    const restore = useWebSocketShim();
    try {
      await (await sandbox.execWs("true", { transport: "native" })).wait();
      const upgrade = fake.requests.find((r) => r.url.includes("ticket="));
      assert.ok(upgrade !== undefined);
      if (process.versions["bun"] === undefined) assert.equal(upgrade.headers.authorization, undefined);
    } finally {
      restore();
    }
  });
});
