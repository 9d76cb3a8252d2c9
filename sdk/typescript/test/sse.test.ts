import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { parseEvents } from "../src/sse.js";
import { HeadAndTail, OutputDecoder } from "../src/output.js";
import { retryAfterOf } from "../src/errors.js";
import { camelize } from "../src/names.js";
import { collect } from "./suite/expect.js";

async function events(...chunks: (string | Uint8Array)[]) {
  return await collect(parseEvents((async function* () {
    for (const chunk of chunks) yield typeof chunk === "string" ? new TextEncoder().encode(chunk) : chunk;
  })()));
}

describe("server-sent events", () => {
  it("are parsed with every kind of line end, in any pieces", async () => {
    const text = ": comment\nid: 1\nevent: a\ndata: one\ndata: two\n\nevent:b\rdata:x\r\rdata: é\r\n\r\ndata\n\n";
    const expected = [
      { event: "a", data: "one\ntwo", id: "1" }, { event: "b", data: "x", id: "1" }, { event: "message", data: "é", id: "1" }, { event: "message", data: "", id: "1" },
    ];
    assert.deepEqual(await events(text), expected);
    assert.deepEqual(await events(...[...new TextEncoder().encode(text)].map((byte) => Uint8Array.of(byte))), expected);
  });

  it("that are cut short are dropped", async () => {
    assert.deepEqual(await events("event: exit\ndata: {}\n"), []);
    assert.deepEqual(await events("event: exit\ndata: {}"), []);
  });

  it("without data say nothing", async () => {
    assert.deepEqual(await events("event: a\n\ndata: x\n\n"), [{ event: "message", data: "x", id: undefined }]);
  });
});

describe("output", () => {
  it("keeps characters whole over chunks and streams", () => {
    const decoder = new OutputDecoder();
    assert.equal(decoder.decode("stdout", Uint8Array.of(0x63, 0xc3)), "c");
    assert.equal(decoder.decode("stderr", Uint8Array.of(0x65)), "e");
    assert.equal(decoder.decode("stdout", Uint8Array.of(0xa9)), "é");
    assert.equal(decoder.decode("stdout", Uint8Array.of(0xf0, 0x9f)), "");
    assert.equal(decoder.flush("stdout"), "\ufffd");
    assert.equal(decoder.flush("stderr"), "");
  });

  it("keeps head and tail in bounded memory", () => {
    const kept = new HeadAndTail(10);
    for (let i = 0; i < 1000; i++) kept.push(Uint8Array.of(i % 256));
    const { bytes, missing } = kept.take();
    assert.deepEqual([...bytes], [0, 1, 2, 3, 4, 227, 228, 229, 230, 231]);
    assert.equal(missing, 990);
    const small = new HeadAndTail(10);
    small.push(Uint8Array.of(1, 2, 3));
    assert.deepEqual(small.take(), { bytes: Uint8Array.of(1, 2, 3), missing: 0 });
  });
});

describe("answers", () => {
  it("are renamed, but for keys that are data", () => {
    assert.deepEqual(camelize({ exit_code: 1, a_b: [{ c_d: null }], metadata: { my_key: { x_y: 1 } }, env: { A_B: "c" } }),
      { exitCode: 1, aB: [{ cD: null }], metadata: { my_key: { x_y: 1 } }, env: { A_B: "c" } });
    const hostile = camelize<Record<string, unknown>>(JSON.parse('{"__proto__": {"polluted": true}}'));
    assert.equal((hostile as { polluted?: boolean }).polluted, undefined);
    assert.equal(({} as { polluted?: boolean }).polluted, undefined);
  });

  it("say when to try again in seconds or as a date", () => {
    assert.equal(retryAfterOf(null), undefined);
    assert.equal(retryAfterOf("3"), 3);
    assert.equal(retryAfterOf("soon"), undefined);
    const seconds = retryAfterOf(new Date(Date.now() + 10_000).toUTCString());
    assert.ok(seconds !== undefined && seconds > 8 && seconds <= 10);
    assert.equal(retryAfterOf(new Date(0).toUTCString()), 0);
  });
});
