package api

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cayhq/cay"
)

const (
	readSandboxes  = access(cay.ScopeSandboxesRead)
	writeSandboxes = access(cay.ScopeSandboxesWrite)
	runCommands    = access(cay.ScopeExec)
	useFiles       = access(cay.ScopeFiles)
	useJobs        = access(cay.ScopeJobs)
	administer     = access(cay.ScopeAdmin)
)

// routes is the whole surface. typed handlers take and give structs; raw ones write their answer themselves (streams, files, pages).
func (a *API) routes(mux *http.ServeMux) *huma.OpenAPI {
	t := newTable(a, mux)
	const box, job, session = "/v1/sandboxes/{id}", jobsCollection + "/{id}", sessionsCollection + "/{id}"

	typed(t, "POST  ", "/v1/sandboxes", writeSandboxes, "create-sandbox", a.createSandbox)
	typed(t, "GET   ", "/v1/sandboxes", readSandboxes, "list-sandboxes", a.listSandboxes)
	typed(t, "GET   ", box, readSandboxes, "get-sandbox", a.getSandbox)
	typed(t, "PATCH ", box, writeSandboxes, "update-sandbox", a.updateSandbox)
	typed(t, "DELETE", box, writeSandboxes, "delete-sandbox", a.deleteSandbox)
	typed(t, "POST  ", box+"/timeout", writeSandboxes, "set-timeout", a.setTimeout)
	typed(t, "POST  ", box+"/keepalive", writeSandboxes, "keep-alive", a.keepAlive)
	typed(t, "POST  ", box+"/pause", writeSandboxes, "pause-sandbox", a.pauseSandbox)
	typed(t, "POST  ", box+"/resume", writeSandboxes, "resume-sandbox", a.resumeSandbox)
	typed(t, "GET   ", box+"/network", readSandboxes, "get-network", a.getNetwork)
	typed(t, "PUT   ", box+"/network", writeSandboxes, "set-network", a.setNetwork)

	raw(t, "GET   ", box+"/events", readSandboxes, "list-events", a.listEvents)
	typed(t, "GET   ", box+"/metrics", readSandboxes, "get-metrics", a.getMetrics)
	raw(t, "GET   ", box+"/logs", readSandboxes, "read-logs", a.readLogs)

	raw(t, "POST  ", box+"/exec", runCommands, "exec", a.exec)
	raw(t, "GET   ", box+"/exec", runCommands, "exec-websocket", a.execWebSocket)
	raw(t, "POST  ", box+"/code", runCommands, "run-code", a.runCode)
	raw(t, "GET   ", box+"/code", runCommands, "code-websocket", a.codeWebSocket)
	typed(t, "POST  ", box+"/contexts", runCommands, "create-context", a.createContext)
	typed(t, "GET   ", box+"/contexts", runCommands, "list-contexts", a.listContexts)
	typed(t, "GET   ", box+"/contexts/{context}", runCommands, "get-context", a.getContext)
	typed(t, "DELETE", box+"/contexts/{context}", runCommands, "delete-context", a.deleteContext)
	typed(t, "POST  ", box+"/contexts/{context}/interrupt", runCommands, "interrupt-context", a.interruptContext)
	typed(t, "POST  ", box+"/contexts/{context}/restart", runCommands, "restart-context", a.restartContext)
	raw(t, "GET   ", box+"/terminal", runCommands, "terminal", a.terminal)
	typed(t, "GET   ", box+"/processes", runCommands, "list-processes", a.listProcesses)
	typed(t, "GET   ", box+"/processes/{process}", runCommands, "get-process", a.getProcess)
	raw(t, "POST  ", box+"/processes", runCommands, "start-process", a.startProcess)
	typed(t, "GET   ", box+"/processes/{process}/logs", runCommands, "get-process-logs", a.processLogs)
	raw(t, "POST  ", box+"/processes/{process}/stdin", runCommands, "write-stdin", a.writeStdin)
	typed(t, "POST  ", box+"/processes/{process}/resize", runCommands, "resize-process", a.resizeProcess)
	typed(t, "GET   ", box+"/processes/{process}/wait", runCommands, "wait-for-process", a.waitProcess)
	raw(t, "GET   ", box+"/processes/{process}/stream", runCommands, "stream-process", a.streamProcess)
	typed(t, "POST  ", box+"/processes/{process}/signal", runCommands, "signal-process", a.signalProcess)

	raw(t, "GET   ", box+"/files", useFiles, "read-file", a.readFile)
	raw(t, "HEAD  ", box+"/files", useFiles, "head-file", a.headFile)
	raw(t, "PUT   ", box+"/files", useFiles, "write-file", a.writeFile)
	typed(t, "DELETE", box+"/files", useFiles, "delete-file", a.deleteFile)
	typed(t, "GET   ", box+"/files/list", useFiles, "list-files", a.listFiles)
	typed(t, "GET   ", box+"/files/stat", useFiles, "stat-file", a.statFile)
	typed(t, "POST  ", box+"/files/mkdir", useFiles, "make-directory", a.makeDirectory)
	typed(t, "POST  ", box+"/files/move", useFiles, "move-file", a.moveFile)
	typed(t, "POST  ", box+"/files/sign", useFiles, "sign-file", a.signFile)

	typed(t, "POST  ", box+"/files/chmod", useFiles, "change-mode", a.changeMode)
	typed(t, "POST  ", box+"/files/compose", useFiles, "compose-file", a.composeFile)
	typed(t, "GET   ", box+"/files/search", useFiles, "search-files", a.searchFiles)
	raw(t, "GET   ", box+"/files/watch", useFiles, "watch-files", a.watchFiles)
	raw(t, "GET   ", box+"/archive", useFiles, "read-archive", a.readArchive)
	raw(t, "PUT   ", box+"/archive", useFiles, "write-archive", a.writeArchive)

	typed(t, "POST  ", box+"/ports", writeSandboxes, "expose-port", a.exposePort)
	typed(t, "GET   ", box+"/ports", writeSandboxes, "list-ports", a.listPorts)
	typed(t, "DELETE", box+"/ports/{port}", writeSandboxes, "remove-port", a.removePort)
	t.documentPortPath()

	typed(t, "POST  ", jobsCollection, useJobs, "submit-job", a.submitJob)
	typed(t, "GET   ", jobsCollection, useJobs, "list-jobs", a.listJobs)
	typed(t, "GET   ", job, useJobs, "get-job", a.getJob)
	typed(t, "DELETE", job, useJobs, "cancel-job", a.cancelJob)
	raw(t, "GET   ", job+"/outputs", useJobs, "read-job-output", a.readJobOutput)
	raw(t, "GET   ", job+"/stream", useJobs, "stream-job", a.streamJob)

	typed(t, "POST  ", sessionsCollection, useJobs, "create-session", a.createSession)
	typed(t, "GET   ", sessionsCollection, useJobs, "list-sessions", a.listSessions)
	typed(t, "GET   ", session, useJobs, "get-session", a.getSession)
	typed(t, "DELETE", session, useJobs, "delete-session", a.deleteSession)
	typed(t, "GET   ", session+"/files", useFiles, "list-session-files", a.listSessionFiles)
	raw(t, "GET   ", session+"/files/content", useFiles, "read-session-file", a.readSessionFile)
	raw(t, "HEAD  ", session+"/files/content", useFiles, "head-session-file", a.headSessionFile)
	raw(t, "PUT   ", session+"/files/content", useFiles, "write-session-file", a.writeSessionFile)
	typed(t, "DELETE", session+"/files/content", useFiles, "delete-session-file", a.deleteSessionFile)
	raw(t, "GET   ", session+"/archive", useFiles, "read-session-archive", a.readSessionArchive)
	raw(t, "PUT   ", session+"/archive", useFiles, "write-session-archive", a.writeSessionArchive)
	a.doorRoutes(t)

	typed(t, "GET   ", "/v1/history", readSandboxes, "list-history", a.listHistory)
	typed(t, "GET   ", "/v1/history/{id}", readSandboxes, "get-history-record", a.getHistoryRecord)
	typed(t, "GET   ", "/v1/usage", readSandboxes, "get-usage", a.getUsage)
	typed(t, "GET   ", "/v1/audit", administer, "list-audit", a.listAudit)
	raw(t, "GET   ", "/v1/events", readSandboxes, "list-project-events", a.listProjectEvents)

	typed(t, "POST  ", "/v1/tickets", anyKey, "create-ticket", a.createTicket)
	typed(t, "GET   ", "/v1/info", anyKey, "get-info", a.getInfo)
	typed(t, "GET   ", "/v1/runtimes", anyKey, "list-runtimes", a.listRuntimes)
	raw(t, "GET   ", "/metrics", administer, "metrics", a.showMetrics)
	raw(t, "GET   ", "/healthz", public, "healthz", a.healthz)
	raw(t, "GET   ", "/readyz", public, "readyz", a.readyz)
	raw(t, "GET   ", "/openapi.json", public, "openapi", a.showOpenAPI)
	raw(t, "GET   ", "/docs", public, "docs", a.showDocs)
	a.mcpRoute(mux)
	return t.finish()
}
