// Package problem turns domain errors into RFC 9457 documents and writes them. It is the only place where an error becomes bytes
// for a client; it neither logs nor decides which error it is.
package problem

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/cayhq/cay"
)

// ContentType is the media type of a problem document.
const ContentType = "application/problem+json"

// typePrefix and the reason make the type member: a stable name. It needs not resolve.
const typePrefix = "urn:cay:problem:"

// titles says each reason in a few words that never change.
var titles = map[cay.ErrorReason]string{
	cay.InvalidRequest:      "The request is not valid",
	cay.Unauthorized:        "A valid key is needed",
	cay.Forbidden:           "Not allowed",
	cay.NotFound:            "Not found",
	cay.MethodNotAllowed:    "Method not allowed",
	cay.Conflict:            "Conflict with the present state",
	cay.NotReady:            "Not ready yet",
	cay.SandboxPaused:       "The sandbox is paused",
	cay.AlreadyExists:       "It exists already",
	cay.IdempotencyMismatch: "The idempotency key was used for another request",
	cay.Gone:                "No longer there",
	cay.PreconditionFailed:  "A precondition does not hold",
	cay.PayloadTooLarge:     "Too large",
	cay.UnsupportedMedia:    "Unsupported content type",
	cay.RangeNotSatisfiable: "Range not satisfiable",
	cay.Unprocessable:       "Understood, but it cannot be done",
	cay.InvalidImage:        "The image cannot be used",
	cay.RateLimited:         "Too many requests",
	cay.QuotaExceeded:       "Quota exceeded",
	cay.Internal:            "Internal error",
	cay.NotImplemented:      "Not implemented",
	cay.BootFailed:          "The sandbox did not start",
	cay.NoCapacity:          "No capacity",
	cay.Unavailable:         "Temporarily unavailable",
	cay.WorkerLost:          "The worker was lost",
	cay.Timeout:             "Timed out",
	cay.DiskFull:            "The disk is full",
	cay.SlowConsumer:        "The reader is too slow",
}

// Reasons lists every reason that a response can carry, for the API's document.
func Reasons() []cay.ErrorReason {
	all := make([]cay.ErrorReason, 0, len(titles))
	for r := range titles {
		if r != cay.SlowConsumer {
			all = append(all, r)
		}
	}
	return all
}

// Document is a problem as the client sees it. The zero value is of no use; [From] makes one.
type Document struct {
	Type      string          `json:"type"`
	Title     string          `json:"title"`
	Status    int             `json:"status"`
	Detail    string          `json:"detail"`
	Reason    cay.ErrorReason `json:"reason"`
	RequestID string          `json:"request_id"`
	Field     string          `json:"field,omitzero"`
	Extra     map[string]any  `json:",embed"`

	retryAfter time.Duration
	header     http.Header
	cause      error
}

// defaultRetryAfter is said with reasons that promise a Retry-After when the error does not say one.
const defaultRetryAfter = time.Second

// From makes the document for err. An error that is not a *[cay.Error] becomes internal and says nothing of itself; the end of a
// context becomes timeout.
func From(err error, requestID string) *Document {
	var d *Document
	if errors.As(err, &d) {
		return d
	}
	var e *cay.Error
	if !errors.As(err, &e) {
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			e = cay.Errorf(cay.Timeout, "it did not finish in time")
		case errors.Is(err, context.Canceled):
			e = cay.Errorf(cay.Unavailable, "the request was given up")
		default:
			e = cay.Errorf(cay.Internal, "something went wrong on our side; the request id helps to find out what")
		}
	}
	reason, detail := e.Reason, e.Detail
	title, known := titles[reason]
	if !known {
		reason, title = cay.Internal, titles[cay.Internal]
	}
	if reason == cay.Internal {
		detail = "something went wrong on our side; the request id helps to find out what"
	}
	d = &Document{
		Type: typePrefix + string(reason), Title: title, Status: reason.HTTPStatus(), Detail: strings.ToValidUTF8(detail, "\uFFFD"),
		Reason: reason, RequestID: requestID, Field: strings.ToValidUTF8(e.Field, "\uFFFD"), retryAfter: e.RetryAfter, cause: err,
	}
	for k, v := range e.Extra {
		switch k {
		case "type", "title", "status", "detail", "reason", "request_id", "field":
			// The state found travels as `state`: `status` is the document's own member.
			if k == "status" {
				d.extra("state", v)
			}
		default:
			d.extra(k, v)
		}
	}
	if d.retryAfter <= 0 && (d.Status == http.StatusTooManyRequests || d.Status == http.StatusServiceUnavailable || reason == cay.NotReady) {
		d.retryAfter = defaultRetryAfter
	}
	return d
}

func (d *Document) extra(key string, value any) {
	if d.Extra == nil {
		d.Extra = map[string]any{}
	}
	d.Extra[key] = value
}

// WithHeader adds a header to the answer, such as Allow.
func (d *Document) WithHeader(key, value string) *Document {
	if d.header == nil {
		d.header = http.Header{}
	}
	d.header.Set(key, value)
	return d
}

// Cause is the whole error, for the log.
func (d *Document) Cause() error { return d.cause }

// RetryAfter is what the answer says in that header; zero: nothing.
func (d *Document) RetryAfter() time.Duration { return d.retryAfter }

// Error implements error, so that handlers can return a Document.
func (d *Document) Error() string { return string(d.Reason) + ": " + d.Detail }

// GetStatus, GetHeaders and ContentType are what huma asks an error for.
func (d *Document) GetStatus() int { return d.Status }

// GetHeaders returns what goes with the document: Retry-After in whole seconds, Allow.
func (d *Document) GetHeaders() http.Header {
	h := http.Header{}
	for k, v := range d.header {
		h[k] = v
	}
	if d.retryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(d.retryAfter.Seconds())), 10))
	}
	return h
}

// ContentType answers the media type of the document.
func (d *Document) ContentType(string) string { return ContentType }

// Write answers with the document. The header must not have been written.
func (d *Document) Write(w http.ResponseWriter) error {
	h := w.Header()
	for k, v := range d.GetHeaders() {
		h[k] = v
	}
	for _, k := range []string{"Content-Length", "Content-Encoding", "Content-Disposition", "ETag", "Last-Modified", "Accept-Ranges"} {
		h.Del(k)
	}
	h.Set("Content-Type", ContentType)
	h.Set("Cache-Control", "no-store")
	body, err := json.Marshal(d, json.Deterministic(true))
	if err != nil {
		return err
	}
	w.WriteHeader(d.Status)
	_, err = w.Write(append(body, '\n'))
	return err
}
