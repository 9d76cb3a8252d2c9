package api

import (
	"maps"
	"reflect"
	"slices"

	"github.com/cayhq/cay"
)

// Parts of the server that operations need.
const (
	needsJobs     = "jobs"
	needsSessions = "sessions"
)

var (
	jobType     = reflect.TypeFor[job]()
	sessionType = reflect.TypeFor[session]()
)

const submitDescription = `The program is written down and runs as soon as there is room for it, in a sandbox of its own that is gone afterwards: 202 answers before that. It runs once, whatever becomes of this server, the connection or the machine's other programs; when its worker fails it is tried again in a new sandbox, three times at most, which attempt counts.

The submitted program is at /sandbox, which cannot be written. It runs in /workspace, or with session_id in /session, whose files stay. What it writes below /output is kept with the job. There is no network.

With wait_seconds the answer is 200 once the job has finished. A language that there is not is 422 and names those that there are.`

const streamDescription = `Server-sent events, or, where the client upgrades, a WebSocket (no subprotocol) with a frame in each text message. From the first byte whenever the client connects, then live; with seq, or Last-Event-ID, from behind that frame, to the byte.

status {data, attempt}: queued, running; queued again with a higher attempt when its worker failed, and then its output begins anew. stdout and stderr: data is text of whole characters; output that is no UTF-8 is data_base64 instead, exact. gap {stream, bytes}: output that was not kept. The last frame is exit {data, exit_code, signal, timed_out, duration_ms}, or error {data, reason, detail} of a job whose program did not come to an end; data is the job's status.

A stream that ends without exit or error is broken: connect again with the seq of the last frame. The server closes a WebSocket with 1000 after the last frame, 1012 when it restarts, else 4000 + the HTTP status; it pings every 15 s, as a comment does in events. It reads and ignores what a client says. A client that takes nothing for 60 s is cut (slow_consumer, 4503).`

var submitReasons = []cay.ErrorReason{cay.Unprocessable, cay.IdempotencyMismatch, cay.Conflict, cay.QuotaExceeded, cay.Gone, cay.NotImplemented, cay.Timeout, cay.NotFound}

// ofSession are reasons of what uses a session's files.
var ofSession = append([]cay.ErrorReason{cay.Conflict, cay.NotImplemented, cay.NoCapacity, cay.BootFailed, cay.DiskFull, cay.Unprocessable}, inUse...)

var jobOperations = map[string]operationDoc{
	"submit-job": {tag: "Jobs", needs: needsJobs, summary: "Submit a job: a program to run once", status: 202, description: submitDescription, maxBody: cay.MaxExecBody,
		answers: []answerDoc{{202, "application/json", jobType, "Queued, or on its way; Location says where to ask"}, {200, "application/json", jobType, "It has finished within wait_seconds"}},
		reasons: submitReasons},
	"list-jobs": {tag: "Jobs", needs: needsJobs, summary: "List jobs", description: "Newest first, without what their programs left behind.", openQuery: metadataPrefix, reasons: []cay.ErrorReason{cay.NotImplemented}},
	"get-job": {tag: "Jobs", needs: needsJobs, summary: "Get a job, or wait for its end",
		description: "With its output: while it runs, so far. Of each stream at most 1 MiB, head and tail; the stream of the job has all that is kept.", reasons: []cay.ErrorReason{cay.NotImplemented}},
	"cancel-job": {tag: "Jobs", needs: needsJobs, summary: "Cancel a job",
		description: "A queued job is canceled at once; the program of a running one is killed, and its output so far is kept. 202 when that takes longer than 30 s: ask again. One that has finished stays as it is.",
		answers:     []answerDoc{{200, "application/json", jobType, "It has ended: canceled, or as it had before"}, {202, "application/json", jobType, "It is still ending"}},
		reasons:     []cay.ErrorReason{cay.NotImplemented, cay.Conflict}},
	"read-job-output": {tag: "Jobs", needs: needsJobs, summary: "Download a file that a job left behind", signable: cay.PrefixJob,
		answers: []answerDoc{{200, "application/octet-stream", nil, "The file"}}, reasons: []cay.ErrorReason{cay.NotImplemented}},
	"stream-job": {tag: "Jobs", needs: needsJobs, summary: "Follow a job's output", description: streamDescription,
		answers: []answerDoc{{200, eventStream, nil, "Frames"}, upgraded}, events: jobEvents, reasons: []cay.ErrorReason{cay.NotImplemented, cay.NotFound}},

	"create-session": {tag: "Sessions", needs: needsSessions, summary: "Create a session: files that outlive sandboxes", status: 201,
		description: "A sandbox or a job that names the session finds its files at /session. One at a time uses it, unless all say session_shared. It ends ttl_seconds after its last use, with its files.",
		answers:     []answerDoc{{201, "application/json", sessionType, "It can be used"}},
		reasons:     []cay.ErrorReason{cay.Unprocessable, cay.AlreadyExists, cay.IdempotencyMismatch, cay.Conflict, cay.QuotaExceeded, cay.NotImplemented, cay.NotFound}},
	"list-sessions": {tag: "Sessions", needs: needsSessions, summary: "List sessions", description: "Newest first; those that have not ended, unless status says otherwise.", openQuery: metadataPrefix, reasons: []cay.ErrorReason{cay.NotImplemented}},
	"get-session":   {tag: "Sessions", needs: needsSessions, summary: "Get a session", description: "Answers for 30 days after the end, with the reason.", reasons: []cay.ErrorReason{cay.NotImplemented}},
	"delete-session": {tag: "Sessions", needs: needsSessions, summary: "Delete a session with its files", status: 204,
		description: "204 when its files are gone; 202 when they are not after 60 s: ask again. Deleting one that has ended is 204. While a sandbox or a job uses it it is 409, with sandbox_id; with force they end first.",
		answers:     []answerDoc{{204, "", nil, "Gone, and so are its files"}, {202, "application/json", sessionType, "Still ending"}},
		reasons:     []cay.ErrorReason{cay.Conflict, cay.NotImplemented}},
	"list-session-files": {tag: "Sessions", needs: needsSessions, summary: "List a session's files", description: "No sandbox needs to run; an archived session is brought back first. Paths are answered as they are inside, /session/….", reasons: ofSession},
	"read-session-file": {tag: "Sessions", needs: needsSessions, summary: "Download a session's file, or a range of it", description: "As GET /v1/sandboxes/{id}/files.",
		answers: []answerDoc{{200, "application/octet-stream", nil, "The file"}, {206, "application/octet-stream", nil, "The range"}, {304, "", nil, "If-None-Match names the version there is"}},
		reasons: append([]cay.ErrorReason{cay.RangeNotSatisfiable, cay.PreconditionFailed, cay.Forbidden}, ofSession...)},
	"head-session-file": {tag: "Sessions", needs: needsSessions, summary: "What a download would answer, without the file", answers: []answerDoc{{200, "", nil, "It is there"}, {304, "", nil, "If-None-Match names the version there is"}},
		reasons: append([]cay.ErrorReason{cay.PreconditionFailed}, ofSession...)},
	"write-session-file": {tag: "Sessions", needs: needsSessions, summary: "Upload a session's file", binaryBody: true, description: "As PUT /v1/sandboxes/{id}/files.",
		answers: []answerDoc{{200, "application/json", fileType, "The file as it is now"}},
		reasons: append([]cay.ErrorReason{cay.PreconditionFailed, cay.PayloadTooLarge}, ofSession...)},
	"delete-session-file": {tag: "Sessions", needs: needsSessions, summary: "Delete a session's file or directory", status: 204, answers: []answerDoc{{204, "", nil, "Deleted"}}, reasons: ofSession},
	"read-session-archive": {tag: "Sessions", needs: needsSessions, summary: "Download a session's directory, or all of it, as an archive", description: "As GET /v1/sandboxes/{id}/archive.",
		answers: []answerDoc{{200, "application/gzip", nil, "tar.gz"}, {200, "application/x-tar", nil, "tar"}, {200, "application/zstd", nil, "tar.zst"}},
		reasons: append([]cay.ErrorReason{cay.Forbidden}, ofSession...)},
	"write-session-archive": {tag: "Sessions", needs: needsSessions, summary: "Upload an archive into a session", binaryBody: true, description: "As PUT /v1/sandboxes/{id}/archive, into the session's own directory unless path says which.",
		answers: []answerDoc{{200, "application/json", archiveType, "What was written"}}, reasons: ofSession},
}

// operations are all that the document describes, by id.
var operations = func() map[string]operationDoc {
	all := maps.Clone(ownOperations)
	maps.Copy(all, jobOperations)
	maps.Copy(all, historyOperations)
	for id, doc := range jobOperations {
		if id == "read-job-output" { // there is one download, and answers of both forms name it
			continue
		}
		doc.aliasOf, doc.tag, doc.reasons = id, tagDoor, slices.Clone(doc.reasons)
		doc.description = "The same as the operation " + id + ", with names in camelCase."
		all["simple-"+id] = doc
	}
	stream := all["simple-stream-job"]
	stream.description += " The client says which form it wants: it upgrades, or sends Accept: text/event-stream."
	all["simple-stream"] = stream
	return all
}()
