// The real clients, each over each transport and in each revision of the protocol that it speaks, behind one face.
import { Client as NewClient, StreamableHTTPClientTransport as NewHTTP } from "@modelcontextprotocol/client";
import { StdioClientTransport as NewStdio } from "@modelcontextprotocol/client/stdio";
import { Client as OldClient } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport as OldStdio } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport as OldHTTP } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

export const url = process.env.CAY_URL;
export const apiKey = process.env.CAY_API_KEY;
export const bin = process.env.CAY_TEST_BIN;

const identity = { name: "cay-tests", version: "1.0.0" };
const requestTimeout = 300_000; // milliseconds: the machine may be busy

/**
 * What the suites are run with. open({ conversation, key, path, at, quiet }) connects, with a path over HTTP, over stdio to a server at another
 * URL and without what the program says on stderr if that is expected, and answers a connection:
 * list() → tools, call(name, arguments, options) → the result, revision, server, instructions, capabilities, close().
 */
export const matrix = [
  { name: "the new client over HTTP", era: "new", transport: "http", revision: "2026-07-28" },
  { name: "the new client over stdio", era: "new", transport: "stdio", revision: "2026-07-28" },
  { name: "the old client over HTTP", era: "old", transport: "http", revision: "2025-11-25" },
  { name: "the old client over stdio", era: "old", transport: "stdio", revision: "2025-11-25" },
  { name: "the old client over HTTP, as of 2025-06-18", era: "old", transport: "http", revision: "2025-06-18", older: true },
  { name: "the old client over stdio, as of 2025-03-26", era: "old", transport: "stdio", revision: "2025-03-26", older: true },
].map((way) => ({ ...way, open: (options) => open(way, options) }));

/** The ways of the newest revision of each client: where what is tested does not depend on the transport. */
export const overHTTP = matrix.filter((way) => way.transport === "http" && !way.older);

async function open(way, { conversation, key = apiKey, path = "/mcp", at = url, quiet } = {}) {
  const transport = way.transport === "http" ? http(way, conversation, key, path) : stdio(way, conversation, key, at, quiet);
  if (way.older) asks(transport, way.revision);
  const client = way.era === "new" ? new NewClient(identity, { versionNegotiation: { mode: "auto" } }) : new OldClient(identity);
  let revision;
  const setVersion = transport.setProtocolVersion?.bind(transport);
  transport.setProtocolVersion = (version) => {
    revision = version;
    setVersion?.(version);
  };
  await client.connect(transport, { timeout: requestTimeout });
  return {
    way,
    client,
    transport,
    revision: client.getNegotiatedProtocolVersion?.() ?? revision,
    server: client.getServerVersion(),
    capabilities: client.getServerCapabilities(),
    instructions: client.getInstructions(),
    list: async () => (await client.listTools(undefined, { timeout: requestTimeout })).tools,
    call: (name, args = {}, options = {}) => {
      options = { timeout: requestTimeout, ...options };
      return way.era === "new" ? client.callTool({ name, arguments: args }, options) : client.callTool({ name, arguments: args }, undefined, options);
    },
    close: () => client.close(),
  };
}

function http(way, conversation, key, path) {
  const headers = { ...(key && { authorization: `Bearer ${key}` }), ...(conversation && { "cay-conversation": conversation }) };
  return new (way.era === "new" ? NewHTTP : OldHTTP)(new URL(path, url), { requestInit: { headers } });
}

function stdio(way, conversation, key, at, quiet) {
  return new (way.era === "new" ? NewStdio : OldStdio)({
    command: bin, args: ["mcp", ...(conversation ? ["--conversation", conversation] : [])], stderr: quiet ? "ignore" : "inherit",
    env: { PATH: process.env.PATH, HOME: "/nonexistent", CAY_URL: at, CAY_API_KEY: key },
  });
}

/** Makes a client ask for an older revision than its newest: it accepts whichever of them the server agrees to. */
function asks(transport, revision) {
  const send = transport.send.bind(transport);
  transport.send = (message, options) => {
    if (message.method === "initialize") message = { ...message, params: { ...message.params, protocolVersion: revision } };
    return send(message, options);
  };
}
