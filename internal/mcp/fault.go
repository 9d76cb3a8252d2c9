package mcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cayhq/cay/client"
)

// maxDetail bounds the text of a fault, in bytes: some repeat what was asked for.
const maxDetail = 2000

// fault is what a tool could not do, as it is told to a model.
type fault struct {
	reason string // stable: one of the API's, or canceled, unreachable
	detail string // a sentence
	advice string // what to do; may be ""
}

func (f *fault) Error() string { return f.detail }

// reasonKey is where a failed result has its stable reason, in _meta: structured content is for what the tool's schema describes.
const reasonKey = "cay/reason"

// reasonUnreachable is a server that does not answer, or is none of ours.
const reasonUnreachable = "unreachable"

func failure(f *fault) *sdk.CallToolResult {
	detail, _ := valid([]byte(clip(f.detail, maxDetail)))
	text := f.reason + ": " + detail
	if f.advice != "" {
		text += "\n" + f.advice
	}
	return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: text}}, Meta: sdk.Meta{reasonKey: f.reason}}
}

func badArguments(err error) error {
	return &fault{
		reason: client.ReasonInvalidRequest, detail: "the arguments do not fit the tool's input schema: " + err.Error(),
		advice: "Correct them and call again.",
	}
}

func invalid(format string, args ...any) error {
	return &fault{reason: client.ReasonInvalidRequest, detail: fmt.Sprintf(format, args...)}
}

// explained is err as it is told to a model. No error of package client holds a key.
func (s *server) explained(err error) *fault {
	var known *fault
	if errors.As(err, &known) {
		return known
	}
	f := &fault{reason: "internal", detail: err.Error()}
	var e *client.Error
	var network net.Error
	switch {
	case errors.As(err, &e) && e.Reason != "":
		f.reason, f.advice = e.Reason, adviceFor(e)
	case errors.As(err, &e):
		f.reason = reasonUnreachable
	case errors.Is(err, context.DeadlineExceeded):
		f.reason, f.advice = "timeout", "Call again with a longer timeout, or use start_process and process_output."
	case errors.As(err, &network):
		f.reason = reasonUnreachable
	}
	if s.Explain != nil && (f.reason == reasonUnreachable || f.reason == client.ReasonUnauthorized) {
		if advice := s.Explain(err); advice != "" {
			f.advice = advice
		}
	}
	return f
}

// adviceFor says what a model, or the person before it, can do about what the API refused.
func adviceFor(e *client.Error) string {
	switch e.Reason {
	case client.ReasonUnauthorized:
		return "The API key is missing or not valid: ask the user to check the key that this MCP server is configured with."
	case client.ReasonForbidden:
		return "The API key does not have the scope for this: ask the user for a key that has it."
	case client.ReasonGone:
		return "That sandbox has ended. Leave sandbox_id out to use the default sandbox, or make another with create_sandbox."
	case client.ReasonNotFound:
		return "Check the id and the path: list_sandboxes shows sandboxes, list_files files."
	case client.ReasonPaused:
		return "The sandbox is paused and does not resume by itself: ask the user to resume it, or use another."
	case client.ReasonConflict:
		if e.SandboxID != "" {
			return "The session is in use by " + e.SandboxID + ": use that sandbox, or close it first with close_sandbox."
		}
	case client.ReasonNoCapacity, client.ReasonQuotaExceeded:
		return "Close sandboxes that are no longer needed (list_sandboxes, close_sandbox), or ask for less cpu, memory or disk."
	case client.ReasonRateLimited, client.ReasonUnavailable, client.ReasonWorkerLost, client.ReasonNotReady:
		return "This passes: wait a moment, then call again."
	}
	return ""
}

// stoppingFault tells that the server goes away while a call runs. What runs in sandboxes runs on.
func stoppingFault(err error) error {
	var left *leftRunning
	detail := "the server is restarting"
	advice := "Wait a moment, then call again."
	if errors.As(err, &left) {
		detail += "; the program runs on in sandbox " + left.sandbox + " as process " + left.process
		advice = "Wait a moment, then follow it with process_output."
	}
	return &fault{reason: client.ReasonUnavailable, detail: detail, advice: advice}
}

// leftRunning is a process that runs on though the call that started it has ended.
type leftRunning struct{ sandbox, process string }

func (l *leftRunning) Error() string { return "process " + l.process + " of " + l.sandbox + " runs on" }

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
