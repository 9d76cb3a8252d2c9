package api

import (
	"reflect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/streams"
)

const historyDescription = `What ran, and what was there, once it is over: every command, program, background process and terminal, every job, session and sandbox; who asked for it, how it ended, and what it took. Newest end first. Environment, stdin and output are never recorded; commands are, unless the server is told not to. Records of processes follow their end by about a second, all others come with it. Kept for 30 days, unless the server is set otherwise.`

const usageDescription = `Per day (UTC), sandbox or project, or all at once by the parts of group_by. It counts sandboxes that run and those of jobs and sessions alike, as far as about 30 seconds ago, and to the millisecond once a sandbox has ended or was paused.`

const auditDescription = `Requests that changed something, and those that were refused for who asked: 401 and 403. Newest first. What works inside sandboxes (commands, programs, their input and signals, files) is not in it unless it was refused; the history has it. Bodies, queries and keys are never in it. Entries are there within about a second.`

const projectEventsDescription = `Oldest first: changes of status of sandboxes, jobs and sessions, processes killed for memory, full disks. Kept for 24 hours. As JSON, next_cursor is the after of the next page. As server-sent events, each is named after its type and has its id; where what came after the id that was given is no longer kept, an event named reset, with {}, comes first. The stream goes on until the client leaves; an event named error {reason, detail} says that it broke. It is no activity of any sandbox.`

var notThere = []cay.ErrorReason{cay.NotImplemented}

// projectEvents are those of list-project-events.
var projectEvents = []eventDoc{
	{string(cay.EventStatus), reflect.TypeFor[projectEvent](), feedID},
	{string(cay.EventOOM), reflect.TypeFor[projectEvent](), feedID},
	{string(cay.EventDiskFull), reflect.TypeFor[projectEvent](), feedID},
	{string(cay.EventJobStatus), reflect.TypeFor[projectEvent](), feedID},
	{string(cay.EventSessionStatus), reflect.TypeFor[projectEvent](), feedID},
	{"reset", reflect.TypeFor[emptyEvent](), ""},
	{"error", reflect.TypeFor[streams.Failure](), ""},
}

var historyOperations = map[string]operationDoc{
	"list-history": {tag: tagHistory, needs: needsHistory, summary: "List or search what ran", description: historyDescription, reasons: notThere},
	"get-history-record": {tag: tagHistory, needs: needsHistory, summary: "Get the record of what ran",
		description: "By the id of the process, job, session or sandbox, once it is over. What has not ended yet, or was never there, is 404.", reasons: notThere},
	"get-usage":  {tag: tagHistory, needs: needsHistory, summary: "Get what was used", description: usageDescription, reasons: notThere},
	"list-audit": {tag: tagHistory, needs: needsHistory, summary: "List who changed what, and who was refused", description: auditDescription, reasons: notThere},
	"list-project-events": {tag: tagHistory, needs: needsHistory, summary: "List or follow what happens in the project", description: projectEventsDescription,
		answers: []answerDoc{{200, "application/json", reflect.TypeFor[projectEventList](), "A page"}, {200, eventStream, nil, "A page, or events as they happen"}},
		events:  projectEvents, reasons: notThere},
}

// tagHistory is the section of the document that these are in.
const tagHistory = "History"
