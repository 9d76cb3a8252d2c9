package noderpc

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/cayhq/cay"
)

// A connection to a port of a sandbox is an HTTP/1.1 connection to the node's socket that is upgraded to PortProtocol: from the 101 on
// it is that connection's bytes, and either direction ends by itself.
const (
	PortProtocol = "cay-port"
	// PortPattern is where a node's server takes them.
	PortPattern = "GET /ports/{sandbox}/{port}"
)

// PortPath is the path for a port of a sandbox.
func PortPath(sandbox cay.ID, port int) string {
	return "/ports/" + string(sandbox) + "/" + strconv.Itoa(port)
}

// refusal is the body of an answer that is no upgrade.
type refusal struct {
	Reason       string `json:"reason"`
	Detail       string `json:"detail"`
	Field        string `json:"field,omitempty"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"`
}

const maxRefusal = 8 << 10

// Refuse answers a request for an upgrade with err; what is private to it is dropped.
func Refuse(w http.ResponseWriter, err error) {
	e := domain(err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Reason.HTTPStatus())
	_ = json.NewEncoder(w).Encode(refusal{string(e.Reason), e.Detail, e.Field, e.RetryAfter.Milliseconds()}) // whoever is gone needs no answer
}

// Refusal is the error of an answer that is no upgrade.
func Refusal(answer *http.Response) error {
	var r refusal
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxRefusal))
	if err == nil {
		err = json.Unmarshal(body, &r)
	}
	if err != nil || r.Reason == "" {
		return cay.Errorf(cay.Unavailable, "the worker gave no usable answer; try again").After(time.Second).Because(err)
	}
	return &cay.Error{Reason: cay.ErrorReason(r.Reason), Detail: r.Detail, Field: r.Field, RetryAfter: time.Duration(r.RetryAfterMS) * time.Millisecond}
}
