// Generated from openapi.json by scripts/generate.mjs. Do not edit.

/** The operations that the SDK speaks: an operation that is another's second form is left out, and so is what it alone describes. */
function* spoken() {
  for (const [path, item] of Object.entries(document.paths)) {
    for (const method of ["get", "head", "post", "put", "patch", "delete", "options"]) {
      if (item[method] && !item[method]["x-alias-of"]) yield { path, method, operation: item[method] };
    }
  }
}

const used = new Set();
function use(value) {
  if (value === null || typeof value !== "object") return;
  const name = typeof value.$ref === "string" ? value.$ref.replace("#/components/schemas/", "") : undefined;
  if (name !== undefined && !used.has(name)) {
    used.add(name);
    use(document.components.schemas[name]);
  }
  Object.values(value).forEach(use);
}
for (const { operation } of spoken()) use(operation);

/** Members whose keys are data and are therefore never renamed. */
export const openMembers: ReadonlySet<string> = new Set(["data","env","gpu","metadata","packages","region","results","secrets","snapshot","template","volumes"]);

/** Every operation of the document by its id. */
export const operations = {
  "docs": { method: "GET", path: "/docs" },
  "healthz": { method: "GET", path: "/healthz" },
  "metrics": { method: "GET", path: "/metrics" },
  "openapi": { method: "GET", path: "/openapi.json" },
  "readyz": { method: "GET", path: "/readyz" },
  "get-info": { method: "GET", path: "/v1/info" },
  "list-jobs": { method: "GET", path: "/v1/jobs" },
  "submit-job": { method: "POST", path: "/v1/jobs" },
  "get-job": { method: "GET", path: "/v1/jobs/{id}" },
  "cancel-job": { method: "DELETE", path: "/v1/jobs/{id}" },
  "read-job-output": { method: "GET", path: "/v1/jobs/{id}/outputs" },
  "stream-job": { method: "GET", path: "/v1/jobs/{id}/stream" },
  "list-runtimes": { method: "GET", path: "/v1/runtimes" },
  "list-sandboxes": { method: "GET", path: "/v1/sandboxes" },
  "create-sandbox": { method: "POST", path: "/v1/sandboxes" },
  "get-sandbox": { method: "GET", path: "/v1/sandboxes/{id}" },
  "update-sandbox": { method: "PATCH", path: "/v1/sandboxes/{id}" },
  "delete-sandbox": { method: "DELETE", path: "/v1/sandboxes/{id}" },
  "read-archive": { method: "GET", path: "/v1/sandboxes/{id}/archive" },
  "write-archive": { method: "PUT", path: "/v1/sandboxes/{id}/archive" },
  "code-websocket": { method: "GET", path: "/v1/sandboxes/{id}/code" },
  "run-code": { method: "POST", path: "/v1/sandboxes/{id}/code" },
  "list-contexts": { method: "GET", path: "/v1/sandboxes/{id}/contexts" },
  "create-context": { method: "POST", path: "/v1/sandboxes/{id}/contexts" },
  "get-context": { method: "GET", path: "/v1/sandboxes/{id}/contexts/{context}" },
  "delete-context": { method: "DELETE", path: "/v1/sandboxes/{id}/contexts/{context}" },
  "interrupt-context": { method: "POST", path: "/v1/sandboxes/{id}/contexts/{context}/interrupt" },
  "restart-context": { method: "POST", path: "/v1/sandboxes/{id}/contexts/{context}/restart" },
  "list-events": { method: "GET", path: "/v1/sandboxes/{id}/events" },
  "exec-websocket": { method: "GET", path: "/v1/sandboxes/{id}/exec" },
  "exec": { method: "POST", path: "/v1/sandboxes/{id}/exec" },
  "read-file": { method: "GET", path: "/v1/sandboxes/{id}/files" },
  "head-file": { method: "HEAD", path: "/v1/sandboxes/{id}/files" },
  "write-file": { method: "PUT", path: "/v1/sandboxes/{id}/files" },
  "delete-file": { method: "DELETE", path: "/v1/sandboxes/{id}/files" },
  "change-mode": { method: "POST", path: "/v1/sandboxes/{id}/files/chmod" },
  "compose-file": { method: "POST", path: "/v1/sandboxes/{id}/files/compose" },
  "list-files": { method: "GET", path: "/v1/sandboxes/{id}/files/list" },
  "make-directory": { method: "POST", path: "/v1/sandboxes/{id}/files/mkdir" },
  "move-file": { method: "POST", path: "/v1/sandboxes/{id}/files/move" },
  "search-files": { method: "GET", path: "/v1/sandboxes/{id}/files/search" },
  "sign-file": { method: "POST", path: "/v1/sandboxes/{id}/files/sign" },
  "stat-file": { method: "GET", path: "/v1/sandboxes/{id}/files/stat" },
  "watch-files": { method: "GET", path: "/v1/sandboxes/{id}/files/watch" },
  "keep-alive": { method: "POST", path: "/v1/sandboxes/{id}/keepalive" },
  "read-logs": { method: "GET", path: "/v1/sandboxes/{id}/logs" },
  "get-metrics": { method: "GET", path: "/v1/sandboxes/{id}/metrics" },
  "get-network": { method: "GET", path: "/v1/sandboxes/{id}/network" },
  "set-network": { method: "PUT", path: "/v1/sandboxes/{id}/network" },
  "pause-sandbox": { method: "POST", path: "/v1/sandboxes/{id}/pause" },
  "list-ports": { method: "GET", path: "/v1/sandboxes/{id}/ports" },
  "expose-port": { method: "POST", path: "/v1/sandboxes/{id}/ports" },
  "remove-port": { method: "DELETE", path: "/v1/sandboxes/{id}/ports/{port}" },
  "port-get": { method: "GET", path: "/v1/sandboxes/{id}/ports/{port}/{rest}" },
  "port-post": { method: "POST", path: "/v1/sandboxes/{id}/ports/{port}/{rest}" },
  "port-put": { method: "PUT", path: "/v1/sandboxes/{id}/ports/{port}/{rest}" },
  "port-patch": { method: "PATCH", path: "/v1/sandboxes/{id}/ports/{port}/{rest}" },
  "port-delete": { method: "DELETE", path: "/v1/sandboxes/{id}/ports/{port}/{rest}" },
  "list-processes": { method: "GET", path: "/v1/sandboxes/{id}/processes" },
  "start-process": { method: "POST", path: "/v1/sandboxes/{id}/processes" },
  "get-process": { method: "GET", path: "/v1/sandboxes/{id}/processes/{process}" },
  "get-process-logs": { method: "GET", path: "/v1/sandboxes/{id}/processes/{process}/logs" },
  "resize-process": { method: "POST", path: "/v1/sandboxes/{id}/processes/{process}/resize" },
  "signal-process": { method: "POST", path: "/v1/sandboxes/{id}/processes/{process}/signal" },
  "write-stdin": { method: "POST", path: "/v1/sandboxes/{id}/processes/{process}/stdin" },
  "stream-process": { method: "GET", path: "/v1/sandboxes/{id}/processes/{process}/stream" },
  "wait-for-process": { method: "GET", path: "/v1/sandboxes/{id}/processes/{process}/wait" },
  "resume-sandbox": { method: "POST", path: "/v1/sandboxes/{id}/resume" },
  "terminal": { method: "GET", path: "/v1/sandboxes/{id}/terminal" },
  "set-timeout": { method: "POST", path: "/v1/sandboxes/{id}/timeout" },
  "list-sessions": { method: "GET", path: "/v1/sessions" },
  "create-session": { method: "POST", path: "/v1/sessions" },
  "get-session": { method: "GET", path: "/v1/sessions/{id}" },
  "delete-session": { method: "DELETE", path: "/v1/sessions/{id}" },
  "read-session-archive": { method: "GET", path: "/v1/sessions/{id}/archive" },
  "write-session-archive": { method: "PUT", path: "/v1/sessions/{id}/archive" },
  "list-session-files": { method: "GET", path: "/v1/sessions/{id}/files" },
  "read-session-file": { method: "GET", path: "/v1/sessions/{id}/files/content" },
  "head-session-file": { method: "HEAD", path: "/v1/sessions/{id}/files/content" },
  "write-session-file": { method: "PUT", path: "/v1/sessions/{id}/files/content" },
  "delete-session-file": { method: "DELETE", path: "/v1/sessions/{id}/files/content" },
  "create-ticket": { method: "POST", path: "/v1/tickets" },
} as const;

export type OperationId = keyof typeof operations;
