import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { Sandbox, Server } from "../src/index.js";
import type { Contexts } from "../src/contexts.js";
import type { Files } from "../src/files.js";
import { type OperationId, operations } from "../src/generated/operations.js";
import type { Ports } from "../src/ports.js";
import type { Processes } from "../src/processes.js";

type Methods<T> = Extract<{ [K in keyof T]: T[K] extends (...args: never[]) => unknown ? K : never }[keyof T], string>;

/** The method that carries out an operation. The compiler checks that it is there. */
type Method =
  | `Sandbox.${Methods<typeof Sandbox>}` | `sandbox.${Methods<Sandbox>}` | `files.${Methods<Files>}` | `processes.${Methods<Processes>}`
  | `contexts.${Methods<Contexts>}` | `ports.${Methods<Ports>}` | `server.${Methods<Server>}`;

/** A method for every operation of the document: the compiler demands it. */
const methods = {
OPERATIONS
} satisfies Record<OperationId, Method>;

describe("the SDK", () => {
  it("has a method for every operation of the API's document", () => {
    assert.deepEqual(Object.keys(methods).sort(), Object.keys(operations).sort());
    const instances: Record<string, object> = { Sandbox, sandbox: Sandbox.prototype, server: Server.prototype };
    for (const [operation, name] of Object.entries(methods)) {
      const [holder, method] = name.split(".") as [string, string];
      const instance = instances[holder];
      if (instance !== undefined) assert.equal(typeof (instance as Record<string, unknown>)[method], "function", `${operation}: ${name}`);
    }
  });
});
