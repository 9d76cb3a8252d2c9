package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Reasons that programs commonly branch on. The server may answer others.
const (
	ReasonInvalidRequest     = "invalid_request"
	ReasonUnauthorized       = "unauthorized"
	ReasonForbidden          = "forbidden"
	ReasonNotFound           = "not_found"
	ReasonConflict           = "conflict"
	ReasonNotReady           = "not_ready"
	ReasonPaused             = "paused"
	ReasonAlreadyExists      = "already_exists"
	ReasonGone               = "gone"
	ReasonPreconditionFailed = "precondition_failed"
	ReasonUnprocessable      = "unprocessable"
	ReasonRateLimited        = "rate_limited"
	ReasonQuotaExceeded      = "quota_exceeded"
	ReasonNotImplemented     = "not_implemented"
	ReasonNoCapacity         = "no_capacity"
	ReasonUnavailable        = "unavailable"
	ReasonWorkerLost         = "worker_lost"
	ReasonSlowConsumer       = "slow_consumer"
)

// Error is what the server refused or could not do, from its problem document (RFC 9457) or from an error event of a stream.
type Error struct {
	Status       int    // HTTP status; 0 for an error event of a stream
	Reason       string // stable; "" when what answered was not the API, such as a proxy
	Title        string
	Detail       string // a sentence for people
	RequestID    string
	Field        string        // the request field at fault, where there is one
	RetryAfter   time.Duration // 0: not said
	SandboxID    string        // the sandbox that failed, for a create, or that uses a session
	SessionID    string        // the session that has the name, for a create of one
	StatusReason string        // why a sandbox that is gone ended
	Body         []byte        // the document as it came, up to 64 KiB
}

func (e *Error) Error() string {
	var b strings.Builder
	switch {
	case e.Detail != "":
		b.WriteString(e.Detail)
	case e.Title != "":
		b.WriteString(e.Title)
	default:
		b.WriteString("the server answered " + strconv.Itoa(e.Status) + " " + http.StatusText(e.Status))
	}
	var notes []string
	if e.Reason != "" {
		notes = append(notes, e.Reason)
	}
	if e.Field != "" && !strings.Contains(e.Detail, e.Field) {
		notes = append(notes, "field "+e.Field)
	}
	if e.RequestID != "" && e.Status >= 500 {
		notes = append(notes, "request "+e.RequestID)
	}
	if len(notes) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(notes, ", "))
	}
	return b.String()
}

// ReasonOf is the reason of the first [*Error] in err's chain, else "".
func ReasonOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

// errorOf reads the error answer res. It does not close the body.
func errorOf(res *http.Response) *Error {
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBytes)) // a part is better than nothing
	e := problemOf(res.StatusCode, res.Header, body)
	return e
}

func problemOf(status int, header http.Header, body []byte) *Error {
	e := &Error{Status: status, Body: body, RequestID: header.Get("X-Request-Id")}
	if s, err := strconv.ParseInt(header.Get("Retry-After"), 10, 32); err == nil && s > 0 {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	media, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
	if media != "application/problem+json" && media != "application/json" {
		return e
	}
	var doc struct {
		Title, Detail, Reason, Field string
		RequestID                    string `json:"request_id"`
		SandboxID                    string `json:"sandbox_id"`
		SessionID                    string `json:"session_id"`
		StatusReason                 string `json:"status_reason"`
		Errors                       []struct {
			Location string `json:"location"`
		} `json:"errors"`
	}
	if json.Unmarshal(body, &doc) != nil {
		return e
	}
	e.Title, e.Detail, e.Reason, e.Field, e.StatusReason = doc.Title, doc.Detail, doc.Reason, doc.Field, doc.StatusReason
	e.SandboxID, e.SessionID = doc.SandboxID, doc.SessionID
	if doc.RequestID != "" {
		e.RequestID = doc.RequestID
	}
	if e.Field == "" && len(doc.Errors) > 0 {
		e.Field = strings.TrimPrefix(doc.Errors[0].Location, "body.")
	}
	return e
}
