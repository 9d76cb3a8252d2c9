package api

import (
	"reflect"
	"slices"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/streams"
)

const overview = `Cay runs untrusted code in isolated sandboxes.

Send a key as Authorization: Bearer KEY or X-API-Key: KEY. JSON is UTF-8 with snake_case names; times are RFC 3339 in UTC; sizes and durations carry their unit in the name, and every *_seconds may have decimals. Unknown fields and parameters are refused; ignore unknown fields, events and enum values in answers, as /v1 only grows.

Errors are problem documents (RFC 9457) whose reason is stable. Retry-After comes with 429, 503 and not_ready. Every answer has an X-Request-Id.

GET, HEAD, PUT and DELETE are safe to repeat, and so is a POST with an Idempotency-Key: within 24 hours the same key on the same route answers as the first request did, with the object as it is now; an exec attaches to the same process. Another body with the same key is idempotency_mismatch. Refusals that ask to be tried again, 429 and 5xx are not stored.

Browsers: put a ticket from POST /v1/tickets behind ?ticket= for a stream or a download. Requests from foreign origins are refused unless the origin is allowlisted.

File names need not be UTF-8. Going in, their bytes are percent-encoded behind ?path= like any others. Coming out, name and path have U+FFFD for what is no text, and path_percent holds the path percent-encoded, ready to be put behind ?path=.

For models there is POST /mcp: the Model Context Protocol over Streamable HTTP, with the same keys. Its tools are not part of this document.`

const execDescription = `A command that fails is a 200. A string runs under the sandbox's shell; a list is a program and its arguments. Without stdin, the command reads end of file at once. At the timeout the whole tree is killed and what it wrote is answered, with 137, KILL and timed_out.

max_output_bytes bounds what is kept and answered of each stream: past it head and tail are kept, stdout_gap says what is missing, stdout_size is the true size, and the command runs on. With encoding utf8, bytes that are no text become U+FFFD and set lossy; base64 answers stdout_base64 and stderr_base64 instead, exact. An answer whose connection is cut before its end is broken, never a success.

A client that goes away leaves the command running, in every form of exec, unless kill_on_disconnect is set; stdin that was sent still arrives.

Accept: text/event-stream answers events instead: start {process_id, offset}, stdout and stderr {data | data_base64}, gap {stream, offset, bytes}, exit {the fields without output}, error {reason, detail}, and a comment every 15 s. Offsets count stdout and stderr together in the order read; the id of an event is the offset after it (there is none while half a character of the other stream waits for its rest). A stream that ends without exit is broken: attach again with GET …/processes/{process}/stream and Last-Event-ID. The stream that started the process holds it back when it reads slowly; after 60 s without progress it ends with slow_consumer and the process runs on.`

const startProcessDescription = `The process outlives the request and every timeout but its own, of which there is none unless timeout_seconds says so, and the sandbox's. It is not activity: a sandbox with nothing else to do becomes idle. A program that cannot be started is a 201 all the same, with status failed, exit_code 127 or 126, reason start_failed and a detail. A name that a running process has is already_exists.

stdin that the body brings is closed behind it unless stdin_open; what a node does not take at once follows after the answer. An Idempotency-Key answers with the same process, as it is now.`

const codeDescription = `A program that fails is a 200. Without a context it runs as a process of its own, as an exec does, and exit_code is its own. In a context it runs in an interpreter that keeps its state: exit_code is 0, 1 after an uncaught exception (a shell: its last status), or 130 when it was interrupted. Programs in one context run one after the other, at most 64 wait (409), and each one's timeout counts from its own start. At the timeout a program in a context is interrupted: timed_out, 137 and KILL as of an exec, and the state stays; one that goes on for 5 s more is killed with its interpreter, and context_lost says so.

A language that the image lacks is 422 and names those that are there. A context that is not there is 404.

files_changed are those below /workspace, /output and the user's home. outputs are those below /output, with data_base64 until 20 MiB have been answered in all; the others have a url that is good for an hour.

Accept: text/event-stream answers the events of an exec, and after exit one more: result, with all fields that the answer has beyond those of an exec. Attaching with GET …/processes/{process}/stream replays it. A stream that ends without result is broken.`

const webSocketDescription = `Subprotocol cay.exec.v1. Client, as text: {"type":"start", the fields of an exec, "tty", "cols", "rows"} first, then {"type":"resize","cols","rows"}, {"type":"signal","signal":"INT","tree":true}, {"type":"close_stdin"}, {"type":"ping"}; binary messages, up to 1 MiB, are stdin, which stays open until close_stdin.

Server, as text: {"type":"started","process_id","offset","stdin_offset"}, gap, exit, error {reason, detail}, pong; binary: a channel byte (1 stdout, 2 stderr), then bytes. On a TTY close_stdin sends Ctrl-D and all output is channel 1.

With process_id the connection attaches; payload and gap bytes add up to the offset to attach at. Closed with 1000 by the client, an exec runs on unless kill_on_disconnect; any other loss does the same.

The server closes with 1000 after exit; otherwise it sends error, then closes with 4000 + the HTTP status, 1009 (message too large), 1011 or 1012 (restart: attach again). A malformed message is 4400. What is refused before the upgrade is an HTTP problem. The server pings every 15 s.`

var (
	sandboxType = reflect.TypeFor[sandbox]()
	execResult  = reflect.TypeFor[ExecAnswer]()
	codeResult  = reflect.TypeFor[codeAnswer]()
	processType = reflect.TypeFor[process]()
	stdinType   = reflect.TypeFor[stdinAnswer]()
	fileType    = reflect.TypeFor[file]()
	archiveType = reflect.TypeFor[archiveAnswer]()
	exposedType = reflect.TypeFor[exposedPort]()
	statusType  = reflect.TypeFor[statusAnswer]()
)

// ExecAnswer, codeAnswer and statusAnswer describe answers that are written by hand.
type ExecAnswer struct {
	streams.Exit
	Stdout       string `json:"stdout,omitzero" doc:"With encoding utf8"`
	Stderr       string `json:"stderr,omitzero" doc:"With encoding utf8"`
	StdoutBase64 []byte `json:"stdout_base64,omitzero" doc:"With encoding base64"`
	StderrBase64 []byte `json:"stderr_base64,omitzero" doc:"With encoding base64"`
}

type codeAnswer struct {
	ExecAnswer
	CodeOutcome
}

// CodeOutcome is what the answer of a program has beyond that of a command; the event and the message result hold the same.
type CodeOutcome struct {
	Language         string           `json:"language"`
	ContextID        *string          `json:"context_id" doc:"null without a context"`
	FilesChanged     []programFile    `json:"files_changed" doc:"Below /workspace, /output and the user's home; at most 1000"`
	FilesTruncated   bool             `json:"files_truncated" doc:"More changed than is told"`
	Outputs          []output         `json:"outputs" doc:"The files that were created or written below /output, in order"`
	Results          []map[string]any `json:"results" doc:"In a context: what the program displayed and the value of its last expression, each by its media types: text as strings, JSON types as JSON, everything else in base64; is_main marks the value of the last expression. A table has application/vnd.cay.table+json {columns, rows, total_rows} as well"`
	ResultsTruncated bool             `json:"results_truncated" doc:"Results were left out, being too large, or not what they say"`
	Error            orCodeError      `json:"error"`
	ExecutionCount   int64            `json:"execution_count" doc:"Of the context; 0 without one"`
	ContextLost      bool             `json:"context_lost" doc:"The state of the context is gone"`
}

type statusAnswer struct {
	Status string `json:"status"`
}

var upgraded = answerDoc{status: 101, text: "The connection is a WebSocket"}

const (
	offsetID = "The offset after the event: where to attach again"
	feedID   = "The id of the item: where to go on with Last-Event-ID"
)

// execEvents are those of a process's output.
var execEvents = []eventDoc{
	{"start", reflect.TypeFor[execStart](), offsetID},
	{"stdout", reflect.TypeFor[execOutput](), offsetID},
	{"stderr", reflect.TypeFor[execOutput](), offsetID},
	{"gap", reflect.TypeFor[execGap](), offsetID},
	{"exit", reflect.TypeFor[streams.Exit](), offsetID},
	{"error", reflect.TypeFor[streams.Failure](), ""},
}

// codeEvents are those of a program's output, or of a process that may be a program.
var codeEvents = append(slices.Clone(execEvents), eventDoc{"result", reflect.TypeFor[CodeOutcome](), offsetID})

// execStart, execOutput and execGap describe events that package streams writes by hand.
type execStart struct {
	ProcessID cay.ID `json:"process_id"`
	Offset    int64  `json:"offset" doc:"Where the stream begins"`
}

type execOutput struct {
	Data       string `json:"data,omitzero" doc:"With encoding utf8"`
	DataBase64 []byte `json:"data_base64,omitzero" doc:"With encoding base64"`
}

type execGap struct {
	Stream string `json:"stream" enum:"stdout,stderr"`
	Offset int64  `json:"offset" doc:"Of the first byte that is missing"`
	Bytes  int64  `json:"bytes"`
}

// sandboxEvents are those of list-events.
var sandboxEvents = []eventDoc{
	{string(cay.EventStatus), reflect.TypeFor[sandboxEvent](), feedID},
	{string(cay.EventOOM), reflect.TypeFor[sandboxEvent](), feedID},
	{string(cay.EventDiskFull), reflect.TypeFor[sandboxEvent](), feedID},
	{"reset", reflect.TypeFor[emptyEvent](), ""},
	{"error", reflect.TypeFor[streams.Failure](), ""},
}

// emptyEvent describes an event whose name says it all.
type emptyEvent struct{}

// ownOperations are those of what is in /v1 alone.
var ownOperations = map[string]operationDoc{
	"create-sandbox": {tag: "Sandboxes", summary: "Create a sandbox", status: 201,
		description: "Answers 201 once it is READY, or 202 with the sandbox CREATING when wait_seconds are over. One that fails meanwhile is a problem with sandbox_id and the reason; one that is deleted meanwhile is 410. A caller that goes away does not cancel a create.",
		answers:     []answerDoc{{201, "application/json", sandboxType, "READY"}, {202, "application/json", sandboxType, "Still CREATING; Location says where to ask"}},
		reasons:     []cay.ErrorReason{cay.Unprocessable, cay.InvalidImage, cay.IdempotencyMismatch, cay.Conflict, cay.QuotaExceeded, cay.NoCapacity, cay.BootFailed, cay.WorkerLost, cay.DiskFull, cay.Gone, cay.NotImplemented, cay.Timeout}},
	"list-sandboxes": {tag: "Sandboxes", summary: "List sandboxes", description: "Newest first, without those that serve jobs and sessions unless managed=true.", openQuery: metadataPrefix},
	"get-sandbox": {tag: "Sandboxes", summary: "Get a sandbox, or wait for a status",
		description: "Answers for 30 days after the end, with the reason. With wait_for it answers once the status is one of those, the sandbox has ended, or wait_seconds are over."},
	"update-sandbox": {tag: "Sandboxes", summary: "Change metadata, idle timeout or what a timeout does", reasons: []cay.ErrorReason{cay.Conflict}},
	"delete-sandbox": {tag: "Sandboxes", summary: "Delete a sandbox", status: 204,
		description: "204 when its resources are free; 202 when they are not after 60 s: ask again. Deleting one that has ended is 204.",
		answers:     []answerDoc{{204, "", nil, "Gone, and its resources are free"}, {202, "application/json", sandboxType, "Still TERMINATING"}}},
	"set-timeout": {tag: "Sandboxes", summary: "Set when the sandbox ends", description: "The end becomes now + ttl_seconds. What exceeds the maximum is capped: ttl_seconds and expires_at of the answer are those in force.",
		reasons: []cay.ErrorReason{cay.Conflict, cay.IdempotencyMismatch}},
	"keep-alive":     {tag: "Sandboxes", summary: "Count as activity", description: "The idle timeout begins anew.", reasons: append([]cay.ErrorReason{cay.IdempotencyMismatch}, inUse...)},
	"pause-sandbox":  {tag: "Sandboxes", summary: "Pause a sandbox", description: "Returns when it is PAUSED. Idempotent.", reasons: []cay.ErrorReason{cay.Conflict, cay.NotReady, cay.IdempotencyMismatch, cay.NotImplemented, cay.WorkerLost}},
	"resume-sandbox": {tag: "Sandboxes", summary: "Resume a sandbox", description: "Returns when it is READY. Idempotent.", optionalBody: true, reasons: []cay.ErrorReason{cay.Conflict, cay.NotReady, cay.IdempotencyMismatch, cay.NoCapacity, cay.WorkerLost}},
	"get-network":    {tag: "Sandboxes", summary: "Get the network rules in force"},
	"set-network":    {tag: "Sandboxes", summary: "Set the network rules", description: "Only [] for now.", reasons: []cay.ErrorReason{cay.NotImplemented}},

	"list-events": {tag: "Sandboxes", summary: "List or follow what happened to a sandbox",
		description: "Oldest first: changes of status, processes killed for memory, a full disk. Kept for 24 hours, also of a sandbox that has ended. As JSON, next_cursor is the after of the next page. As server-sent events, each is named after its type and has its id; where what came after the id that was given is no longer kept, an event named reset, with {}, comes first. The stream ends after the last status of a sandbox that has ended, and with an event named error {reason, detail} when it breaks. It is no activity.",
		answers:     []answerDoc{{200, "application/json", reflect.TypeFor[eventList](), "A page"}, {200, eventStream, nil, "A page, or events as they happen"}},
		events:      sandboxEvents},
	"get-metrics": {tag: "Sandboxes", summary: "Get what a sandbox used over time",
		description: "Samples, oldest first, as seen from outside of the sandbox; kept for 24 hours and no longer than the sandbox lives. They go on while it is paused. It is no activity.",
		reasons:     []cay.ErrorReason{cay.NotReady, cay.WorkerLost}},
	"read-logs": {tag: "Sandboxes", summary: "Read or follow what was said about a sandbox",
		description: "Oldest first: what bringing it up took, what its worker did to it since, and what the agent inside had to say; never what programs wrote. 1 MiB is kept, as head and tail, as long as the sandbox lives. As JSON, next_cursor is the after of the next page. As server-sent events, each is named log and has the entry's id; the stream ends with the sandbox, and with an event named error {reason, detail} when it breaks. It is no activity.",
		answers:     []answerDoc{{200, "application/json", reflect.TypeFor[page[logEntry]](), "A page"}, {200, eventStream, nil, "A page, or entries as they come"}},
		events:      []eventDoc{{"log", reflect.TypeFor[logEntry](), feedID}, {"error", reflect.TypeFor[streams.Failure](), ""}},
		reasons:     []cay.ErrorReason{cay.NotReady, cay.WorkerLost}},

	"exec": {tag: "Commands", summary: "Run a command", description: execDescription, maxBody: cay.MaxExecBody,
		answers: []answerDoc{{200, "application/json", execResult, "How it ended, and its output"}, {200, eventStream, nil, "How it ended, and its output"}}, events: execEvents,
		reasons: append([]cay.ErrorReason{cay.Unprocessable, cay.IdempotencyMismatch, cay.DiskFull, cay.Conflict}, inUse...)},
	"exec-websocket": {tag: "Commands", summary: "Run a command over a WebSocket", description: webSocketDescription, answers: []answerDoc{upgraded}, reasons: inUse},
	"run-code": {tag: "Commands", summary: "Run a program", description: codeDescription, maxBody: cay.MaxExecBody,
		answers: []answerDoc{{200, "application/json", codeResult, "How it ended, its output, and what it left behind"}, {200, eventStream, nil, "The events of an exec, then result"}}, events: codeEvents,
		reasons: append([]cay.ErrorReason{cay.Unprocessable, cay.IdempotencyMismatch, cay.DiskFull, cay.Conflict, cay.QuotaExceeded}, inUse...)},
	"code-websocket": {tag: "Commands", summary: "Run a program over a WebSocket", answers: []answerDoc{upgraded}, reasons: inUse,
		description: "As GET …/exec, with the fields of POST …/code in the start message and without a terminal. After exit comes a text message of type result with the fields that the answer of POST …/code has beyond those of an exec: it can have 50 MB. In a context there is no stdin."},
	"create-context": {tag: "Commands", summary: "Open a context", status: 201, description: "An interpreter that keeps its state between programs. A sandbox has at most 64.",
		reasons: append([]cay.ErrorReason{cay.Unprocessable, cay.Conflict, cay.DiskFull, cay.IdempotencyMismatch}, inUse...)},
	"list-contexts":  {tag: "Commands", summary: "List contexts", reasons: inUse},
	"get-context":    {tag: "Commands", summary: "Get a context", reasons: inUse},
	"delete-context": {tag: "Commands", summary: "Close a context", status: 204, description: "What runs in it ends.", answers: []answerDoc{{204, "", nil, "Closed"}}, reasons: inUse},
	"interrupt-context": {tag: "Commands", summary: "Interrupt what runs in a context", description: "Its state stays. When nothing runs, nothing happens.",
		reasons: append([]cay.ErrorReason{cay.Conflict, cay.Unprocessable, cay.IdempotencyMismatch}, inUse...)},
	"restart-context": {tag: "Commands", summary: "Restart a context", description: "It gets a fresh interpreter; what runs or waits in it ends.",
		reasons: append([]cay.ErrorReason{cay.Conflict, cay.Unprocessable, cay.IdempotencyMismatch}, inUse...)},
	"terminal": {tag: "Commands", summary: "Open a terminal: a login shell on a TTY, over a WebSocket",
		description: "As GET …/exec, but it starts by itself. Closed with 1000 by the client, the shell gets HUP, then KILL; any other loss leaves it waiting 60 s for its user, who attaches with process_id and offset.", answers: []answerDoc{upgraded}, reasons: inUse},
	"list-processes": {tag: "Commands", summary: "List processes", reasons: inUse},
	"get-process":    {tag: "Commands", summary: "Get a process", reasons: inUse},
	"start-process": {tag: "Commands", summary: "Start a process in the background", status: 201, maxBody: cay.MaxExecBody, description: startProcessDescription,
		answers: []answerDoc{{201, "application/json", processType, "It runs, or failed to start"}},
		reasons: append([]cay.ErrorReason{cay.Unprocessable, cay.AlreadyExists, cay.IdempotencyMismatch, cay.DiskFull, cay.QuotaExceeded}, inUse...)},
	"get-process-logs": {tag: "Commands", summary: "Read a page of a process's output", description: "What is kept, from an offset on; it never waits. A character that the end of the page would cut belongs to the next page.",
		reasons: append([]cay.ErrorReason{cay.Conflict}, inUse...)},
	"write-stdin": {tag: "Commands", summary: "Write to a process's stdin", binaryBody: true,
		description: "The body, up to 64 MiB, goes to the process as it comes, and the answer follows when the process's side has all of it: a process that does not read holds it back. It comes in one run: who else writes to the process, another request or a WebSocket, waits. A process that has ended, or whose stdin is not open, is 409. With offset a request that was cut off can be repeated; an Idempotency-Key covers the query and the length of the body.",
		answers:     []answerDoc{{200, "application/json", stdinType, "How far the process's stdin is"}},
		reasons:     append([]cay.ErrorReason{cay.Conflict, cay.PayloadTooLarge, cay.IdempotencyMismatch}, inUse...)},
	"resize-process": {tag: "Commands", summary: "Set the size of a process's terminal", status: 204, answers: []answerDoc{{204, "", nil, "Set"}},
		description: "A process that has ended, or has no terminal, is 409.", reasons: append([]cay.ErrorReason{cay.Conflict}, inUse...)},
	"wait-for-process": {tag: "Commands", summary: "Wait for the end of a process", description: "Answers the process once it has ended, or as it is when timeout_seconds are over.",
		reasons: append([]cay.ErrorReason{cay.Conflict}, inUse...)},
	"stream-process": {tag: "Commands", summary: "Attach to a process's output",
		description: "Server-sent events as of POST …/exec, or, as a WebSocket, messages as of GET …/exec without stdin. It holds nobody back: a reader that lags gets a gap. Ended processes can be attached to for 15 minutes, and the last 100 as long as the sandbox lives.",
		answers:     []answerDoc{{200, eventStream, nil, "Events"}, upgraded}, events: codeEvents, reasons: append([]cay.ErrorReason{cay.Conflict}, inUse...)},
	"signal-process": {tag: "Commands", summary: "Send a signal", status: 204, answers: []answerDoc{{204, "", nil, "Sent"}},
		reasons: append([]cay.ErrorReason{cay.Conflict, cay.Unprocessable, cay.IdempotencyMismatch}, inUse...)},

	"read-file": {tag: "Files", summary: "Download a file, or a range of it", signable: cay.PrefixSandbox, description: "A directory, device, FIFO or socket is 422. Several ranges are answered by the whole.",
		answers: []answerDoc{{200, "application/octet-stream", nil, "The file"}, {206, "application/octet-stream", nil, "The range"}, {304, "", nil, "If-None-Match names the version there is"}},
		reasons: append([]cay.ErrorReason{cay.Unprocessable, cay.RangeNotSatisfiable, cay.PreconditionFailed, cay.Forbidden}, inUse...)},
	"head-file": {tag: "Files", summary: "What a download would answer, without the file", signable: cay.PrefixSandbox, answers: []answerDoc{{200, "", nil, "It is there"}, {304, "", nil, "If-None-Match names the version there is"}},
		reasons: append([]cay.ErrorReason{cay.Unprocessable, cay.PreconditionFailed}, inUse...)},
	"write-file": {tag: "Files", summary: "Upload a file", binaryBody: true, signable: cay.PrefixSandbox,
		description: "The body is the file. Directories above it are made. Readers see the old or the whole new file; a body that ends early writes nothing. The mode of what it replaces is kept unless mode is given.",
		answers:     []answerDoc{{200, "application/json", fileType, "The file as it is now"}},
		reasons:     append([]cay.ErrorReason{cay.Unprocessable, cay.PreconditionFailed, cay.DiskFull, cay.Conflict, cay.PayloadTooLarge}, inUse...)},
	"delete-file": {tag: "Files", summary: "Delete a file or directory", status: 204, answers: []answerDoc{{204, "", nil, "Deleted"}},
		reasons: append([]cay.ErrorReason{cay.Conflict, cay.Unprocessable}, inUse...)},
	"list-files":     {tag: "Files", summary: "List a directory", reasons: append([]cay.ErrorReason{cay.Unprocessable}, inUse...)},
	"stat-file":      {tag: "Files", summary: "Describe a file", reasons: append([]cay.ErrorReason{cay.Unprocessable}, inUse...)},
	"make-directory": {tag: "Files", summary: "Make a directory", status: 201, reasons: append([]cay.ErrorReason{cay.AlreadyExists, cay.Conflict, cay.Unprocessable, cay.DiskFull, cay.IdempotencyMismatch}, inUse...)},
	"move-file":      {tag: "Files", summary: "Move or rename", reasons: append([]cay.ErrorReason{cay.AlreadyExists, cay.Conflict, cay.Unprocessable, cay.DiskFull, cay.IdempotencyMismatch}, inUse...)},

	"sign-file": {tag: "Files", summary: "Make a URL that is good by itself",
		description: "The URL is good without a key, until it expires, for exactly that method, file, user and size: GET, which allows HEAD, or PUT. It dies with the key that made it, with the key's scope files, and with the sandbox. Treat it as a secret.",
		reasons:     []cay.ErrorReason{cay.IdempotencyMismatch, cay.Conflict}},
	"change-mode": {tag: "Files", summary: "Change mode or owner", description: "The kernel decides what user may: what is another's, and every change of the owner, needs user=root in the query. Recursively it ends at the first thing that may not be changed.",
		reasons: append([]cay.ErrorReason{cay.Unprocessable, cay.Conflict, cay.IdempotencyMismatch}, inUse...)},
	"compose-file": {tag: "Files", summary: "Make one file of several", description: "Readers see the old or the whole new file. The sources, such as the parts of an upload, are removed once it is there; a refusal leaves everything as it was. It takes the disk for both meanwhile.",
		reasons: append([]cay.ErrorReason{cay.Unprocessable, cay.DiskFull, cay.Conflict, cay.IdempotencyMismatch}, inUse...)},
	"search-files": {tag: "Files", summary: "Search a directory by name and content", description: "In the order of the names' bytes, parents before what they hold. Symlinks are not followed; what may not be read is left out. One request does bounded work: truncated says that it ended early, and next_cursor goes on.",
		reasons: append([]cay.ErrorReason{cay.Unprocessable}, inUse...)},
	"watch-files": {tag: "Files", summary: "Watch files change", description: "Server-sent events: ready once every change from then on is seen, then change. The content of a directory that appears is told as created. overflow: more changed than could be told, list again. When the path itself is removed or moved, the stream ends after its remove. At most 64 watches a sandbox. An idle watch does not keep a sandbox from its idle timeout.",
		answers: []answerDoc{{200, eventStream, nil, "Events"}}, events: watchEvents,
		reasons: append([]cay.ErrorReason{cay.Unprocessable, cay.Conflict}, inUse...)},
	"read-archive": {tag: "Files", summary: "Download a directory as an archive", description: "Names are relative to path; of a file, an archive of it alone. Symlinks stay symlinks; sockets, devices and FIFOs are left out. An archive that breaks on the way ends the connection: it is never a shorter one.",
		answers: []answerDoc{{200, "application/gzip", nil, "tar.gz"}, {200, "application/x-tar", nil, "tar"}, {200, "application/zstd", nil, "tar.zst"}},
		reasons: append([]cay.ErrorReason{cay.Unprocessable, cay.Forbidden, cay.Conflict}, inUse...)},
	"write-archive": {tag: "Files", summary: "Upload an archive into a directory", binaryBody: true,
		description: "The directory is made if it is missing. All or nothing: an entry that would leave path (.., an absolute name, through a symlink or a hard link), a cut archive or a full disk writes nothing. What is there already is merged with: directories stay as they are, files are replaced one by one, each at once. setuid and setgid bits are dropped; devices, FIFOs and sockets are skipped and counted. The owner is user.",
		answers:     []answerDoc{{200, "application/json", archiveType, "What was written"}},
		reasons:     append([]cay.ErrorReason{cay.Unprocessable, cay.DiskFull, cay.Conflict}, inUse...)},

	"expose-port": {tag: "Ports", summary: "Give a port a URL", status: 201,
		description: "The URL reaches a server in the sandbox, on its loopback or any other address, by HTTP and WebSocket, at a host of its own. Unless the port is public, a request needs its token: as the header Cay-Port-Token or behind ?cay_port_token=, which a browser is sent on from, with a cookie. Asked again, public may change; the token stays until the port is removed.",
		answers:     []answerDoc{{201, "application/json", exposedType, "It has a URL now"}, {200, "application/json", exposedType, "It had one already"}},
		reasons:     []cay.ErrorReason{cay.Conflict, cay.IdempotencyMismatch}},
	"list-ports":  {tag: "Ports", summary: "List the ports that have a URL"},
	"remove-port": {tag: "Ports", summary: "Take a port's URL away", status: 204, description: "Its connections are cut.", answers: []answerDoc{{204, "", nil, "It has none any more"}}},
	"port": {tag: "Ports", summary: "Send a request to a port, with a key",
		description: "Any method, path, query and body, and WebSocket. The port need not have a URL. The server inside sees neither the key nor cookies; its answer comes as it is, without what would act on the API's own origin: no cookies, and Content-Security-Policy: sandbox. 503 unavailable: nothing listens there.",
		answers:     []answerDoc{{200, "*/*", nil, "What the server inside answers, with its status"}, upgraded},
		reasons:     inUse},

	"create-ticket": {tag: "System", summary: "Make a ticket for a browser", description: "Good once, for 60 s, for exactly that GET, SSE or WebSocket URL with its query; put it behind ?ticket=. It has the scopes of the key and dies with it."},
	"get-info":      {tag: "System", summary: "Version, features, limits, runtimes, isolation"},
	"list-runtimes": {tag: "System", summary: "List runtimes"},
	"metrics":       {tag: "System", summary: "Metrics for Prometheus", answers: []answerDoc{{200, "text/plain", nil, "Metrics"}}},
	"healthz":       {tag: "System", summary: "The process lives", answers: []answerDoc{{200, "application/json", statusType, "It does"}}},
	"readyz":        {tag: "System", summary: "Ready for work, or what is not", answers: []answerDoc{{200, "application/json", statusType, "Ready"}}, reasons: []cay.ErrorReason{cay.Unavailable}},
	"openapi":       {tag: "System", summary: "This document", answers: []answerDoc{{200, "application/json", nil, "OpenAPI 3.1"}}},
	"docs":          {tag: "System", summary: "This document, to read", answers: []answerDoc{{200, "text/html", nil, "A page"}}},
}
