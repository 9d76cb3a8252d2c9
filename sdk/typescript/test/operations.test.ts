import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { Audit, Events, History, Job, Sandbox, Server, Session, Usage } from "../src/index.js";
import type { Contexts } from "../src/contexts.js";
import type { Files } from "../src/files.js";
import { type OperationId, operations } from "../src/generated/operations.js";
import type { Ports } from "../src/ports.js";
import type { Processes } from "../src/processes.js";
import { SessionFiles } from "../src/session.js";

type Methods<T> = Extract<{ [K in keyof T]: T[K] extends (...args: never[]) => unknown ? K : never }[keyof T], string>;

/** The method that carries out an operation. The compiler checks that it is there. */
type Method =
  | `Sandbox.${Methods<typeof Sandbox>}` | `sandbox.${Methods<Sandbox>}` | `files.${Methods<Files>}` | `processes.${Methods<Processes>}`
  | `Job.${Methods<typeof Job>}` | `job.${Methods<Job>}` | `Session.${Methods<typeof Session>}` | `session.${Methods<Session>}` | `session files.${Methods<SessionFiles>}`
  | `contexts.${Methods<Contexts>}` | `ports.${Methods<Ports>}` | `server.${Methods<Server>}`
  | `History.${Methods<typeof History>}` | `Usage.${Methods<typeof Usage>}` | `Audit.${Methods<typeof Audit>}` | `Events.${Methods<typeof Events>}`;

/** A method for every operation of the document: the compiler demands it. */
const methods = {
  "docs": "server.docs",
  "healthz": "server.health",
  "metrics": "server.metrics",
  "openapi": "server.openapi",
  "readyz": "server.ready",
  "get-info": "server.info",
  "list-runtimes": "server.runtimes",
  "list-sandboxes": "Sandbox.list",
  "create-sandbox": "Sandbox.create",
  "get-sandbox": "Sandbox.connect",
  "update-sandbox": "sandbox.update",
  "delete-sandbox": "sandbox.close",
  "read-archive": "files.downloadArchive",
  "write-archive": "files.uploadArchive",
  "list-events": "sandbox.events",
  "exec-websocket": "sandbox.execWs",
  "exec": "sandbox.exec",
  "run-code": "sandbox.runCode",
  "code-websocket": "sandbox.runCodeWs",
  "create-context": "contexts.create",
  "list-contexts": "contexts.list",
  "get-context": "contexts.get",
  "delete-context": "contexts.delete",
  "interrupt-context": "contexts.interrupt",
  "restart-context": "contexts.restart",
  "read-file": "files.read",
  "head-file": "files.head",
  "write-file": "files.write",
  "delete-file": "files.remove",
  "list-files": "files.list",
  "make-directory": "files.mkdir",
  "move-file": "files.move",
  "sign-file": "files.sign",
  "stat-file": "files.stat",
  "change-mode": "files.chmod",
  "compose-file": "files.compose",
  "search-files": "files.search",
  "watch-files": "files.watch",
  "keep-alive": "sandbox.keepalive",
  "read-logs": "sandbox.logs",
  "get-metrics": "sandbox.metrics",
  "get-network": "sandbox.getNetwork",
  "set-network": "sandbox.setNetwork",
  "pause-sandbox": "sandbox.pause",
  "list-ports": "ports.list",
  "expose-port": "ports.expose",
  "remove-port": "ports.close",
  "port-get": "ports.fetch",
  "port-post": "ports.fetch",
  "port-put": "ports.fetch",
  "port-patch": "ports.fetch",
  "port-delete": "ports.fetch",
  "list-processes": "processes.list",
  "start-process": "processes.start",
  "get-process": "processes.get",
  "get-process-logs": "processes.logs",
  "resize-process": "processes.resize",
  "signal-process": "processes.signal",
  "write-stdin": "processes.sendStdin",
  "stream-process": "processes.follow",
  "wait-for-process": "processes.wait",
  "resume-sandbox": "sandbox.resume",
  "terminal": "sandbox.terminal",
  "set-timeout": "sandbox.setTimeout",
  "create-ticket": "server.createTicket",
  "submit-job": "Job.submit",
  "list-jobs": "Job.list",
  "get-job": "Job.connect",
  "cancel-job": "job.cancel",
  "read-job-output": "job.readOutput",
  "stream-job": "job.stream",
  "create-session": "Session.create",
  "list-sessions": "Session.list",
  "get-session": "Session.connect",
  "delete-session": "session.delete",
  "list-session-files": "session files.list",
  "read-session-file": "session files.read",
  "head-session-file": "session files.head",
  "write-session-file": "session files.write",
  "delete-session-file": "session files.remove",
  "read-session-archive": "session files.downloadArchive",
  "write-session-archive": "session files.uploadArchive",
  "list-history": "History.list",
  "get-history-record": "History.get",
  "get-usage": "Usage.get",
  "list-audit": "Audit.list",
  "list-project-events": "Events.list",
} satisfies Record<OperationId, Method>;

describe("the SDK", () => {
  it("has a method for every operation of the API's document", () => {
    assert.deepEqual(Object.keys(methods).sort(), Object.keys(operations).sort());
    const instances: Record<string, object> = {
      Sandbox, sandbox: Sandbox.prototype, Job, job: Job.prototype, Session, session: Session.prototype, "session files": SessionFiles.prototype, server: Server.prototype,
      History, Usage, Audit, Events,
    };
    for (const [operation, name] of Object.entries(methods)) {
      const [holder, method] = name.split(".") as [string, string];
      const instance = instances[holder];
      if (instance !== undefined) assert.equal(typeof (instance as Record<string, unknown>)[method], "function", `${operation}: ${name}`);
    }
  });
});
