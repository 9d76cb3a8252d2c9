// Generated from openapi.json by scripts/generate.mjs. Do not edit.

/** Members whose keys are data and are therefore never renamed. */
export const openMembers: ReadonlySet<string> = new Set(["data","env","gpu","metadata","packages","region","secrets","session_id","snapshot","template","volumes"]);

/** Every operation of the document by its id. */
export const operations = {
  "docs": { method: "GET", path: "/docs" },
  "healthz": { method: "GET", path: "/healthz" },
  "metrics": { method: "GET", path: "/metrics" },
  "openapi": { method: "GET", path: "/openapi.json" },
  "readyz": { method: "GET", path: "/readyz" },
  "get-info": { method: "GET", path: "/v1/info" },
  "list-runtimes": { method: "GET", path: "/v1/runtimes" },
  "list-sandboxes": { method: "GET", path: "/v1/sandboxes" },
  "create-sandbox": { method: "POST", path: "/v1/sandboxes" },
  "get-sandbox": { method: "GET", path: "/v1/sandboxes/{id}" },
  "update-sandbox": { method: "PATCH", path: "/v1/sandboxes/{id}" },
  "delete-sandbox": { method: "DELETE", path: "/v1/sandboxes/{id}" },
  "read-archive": { method: "GET", path: "/v1/sandboxes/{id}/archive" },
  "write-archive": { method: "PUT", path: "/v1/sandboxes/{id}/archive" },
  "list-events": { method: "GET", path: "/v1/sandboxes/{id}/events" },
  "exec-websocket": { method: "GET", path: "/v1/sandboxes/{id}/exec" },
  "exec": { method: "POST", path: "/v1/sandboxes/{id}/exec" },
  "read-file": { method: "GET", path: "/v1/sandboxes/{id}/files" },
  "head-file": { method: "HEAD", path: "/v1/sandboxes/{id}/files" },
  "write-file": { method: "PUT", path: "/v1/sandboxes/{id}/files" },
  "delete-file": { method: "DELETE", path: "/v1/sandboxes/{id}/files" },
  "list-files": { method: "GET", path: "/v1/sandboxes/{id}/files/list" },
  "make-directory": { method: "POST", path: "/v1/sandboxes/{id}/files/mkdir" },
  "move-file": { method: "POST", path: "/v1/sandboxes/{id}/files/move" },
  "sign-file": { method: "POST", path: "/v1/sandboxes/{id}/files/sign" },
  "stat-file": { method: "GET", path: "/v1/sandboxes/{id}/files/stat" },
  "keep-alive": { method: "POST", path: "/v1/sandboxes/{id}/keepalive" },
  "get-network": { method: "GET", path: "/v1/sandboxes/{id}/network" },
  "set-network": { method: "PUT", path: "/v1/sandboxes/{id}/network" },
  "pause-sandbox": { method: "POST", path: "/v1/sandboxes/{id}/pause" },
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
  "create-ticket": { method: "POST", path: "/v1/tickets" },
} as const;

export type OperationId = keyof typeof operations;
