// What every answer of a tool has to be.
import assert from "node:assert/strict";
import http from "node:http";
import zlib from "node:zlib";
import { Ajv2020 } from "ajv/dist/2020.js";
import formats from "ajv-formats";

/** Calls tools of a connection, and checks every answer against the tool's output schema, by a validator of the tests' own. */
export async function toolbox(connection) {
  const ajv = new Ajv2020({ strict: true, strictRequired: false, allErrors: true });
  formats.default(ajv);
  const schemas = new Map((await connection.list()).map((tool) => [tool.name, ajv.compile(tool.outputSchema)]));
  const succeed = async (name, args, options) => {
    const result = await connection.call(name, args, options);
    assert.ok(!result.isError, `${name} answered an error: ${text(result.content)}`);
    const valid = schemas.get(name);
    assert.ok(valid(result.structuredContent), `${name} answered ${JSON.stringify(result.structuredContent)}: ${ajv.errorsText(valid.errors)}`);
    assert.equal(result.content[0].type, "text");
    assert.notEqual(result.content[0].text, "");
    return { ...result.structuredContent, parts: result.content };
  };
  const fail = async (name, args) => {
    const result = await connection.call(name, args);
    assert.equal(result.isError, true, `${name} should have failed, and answered ${text(result.content)}`);
    assert.match(text(result.content), /^[a-z_]+: \S/, "the text is a reason and what happened");
    assert.equal(result._meta["cay/reason"], /^[a-z_]+/.exec(text(result.content))[0]);
    return { reason: result._meta["cay/reason"], text: text(result.content) };
  };
  return { ...connection, ajv, succeed, fail };
}

export const text = (parts) => parts.filter((part) => part.type === "text").map((part) => part.text).join("\n");

/** The size of the picture among the parts of a result, once its bytes have been found to be a whole PNG. */
export function pngIn(parts) {
  const images = parts.filter((part) => part.type === "image");
  assert.equal(images.length, 1, JSON.stringify(parts).slice(0, 2000));
  assert.equal(images[0].mimeType, "image/png");
  const data = Buffer.from(images[0].data, "base64");
  assert.equal(data.toString("latin1", 0, 8), "\x89PNG\r\n\x1a\n");
  const chunks = new Map();
  for (let at = 8; at < data.length; ) {
    const length = data.readUInt32BE(at);
    const kind = data.toString("latin1", at + 4, at + 8);
    assert.equal(data.readUInt32BE(at + 8 + length), zlib.crc32(data.subarray(at + 4, at + 8 + length)), `the checksum of ${kind}`);
    chunks.set(kind, Buffer.concat([chunks.get(kind) ?? Buffer.alloc(0), data.subarray(at + 8, at + 8 + length)]));
    at += 12 + length;
  }
  assert.ok(chunks.has("IEND"));
  const header = chunks.get("IHDR");
  const [width, height] = [header.readUInt32BE(0), header.readUInt32BE(4)];
  assert.ok(zlib.inflateSync(chunks.get("IDAT")).length >= height * (1 + width / 8));
  return { width, height };
}

/** Asks again until the answer is true. Nothing here depends on how fast a machine is. */
export async function until(what, ask, patience = 90_000) {
  for (const deadline = Date.now() + patience; ; await new Promise((resolve) => setTimeout(resolve, 200))) {
    const answer = await ask();
    if (answer) return answer;
    assert.ok(Date.now() < deadline, `${what}: not within ${patience} ms`);
  }
}

/** Fetches a URL whose name is below localhost: browsers take it for this machine, resolvers may not. */
export function fetchByName(address, headers = {}) {
  const { host, port, pathname, search } = new URL(address);
  return new Promise((resolve, reject) => {
    const request = http.get({ host: "127.0.0.1", port, path: pathname + search, headers: { ...headers, host } }, async (response) => {
      const chunks = [];
      for await (const chunk of response) chunks.push(chunk);
      resolve({ status: response.statusCode, body: Buffer.concat(chunks).toString() });
    });
    request.once("error", reject);
  });
}
