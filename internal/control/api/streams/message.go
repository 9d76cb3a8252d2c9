package streams

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/strictjson"
)

// Subprotocol is what both ends of an exec WebSocket must name.
const Subprotocol = "cay.exec.v1"

// MaxMessage bounds a client's WebSocket message, in bytes.
const MaxMessage = 1 << 20

// ClientMessage is a text message of a client, other than start, whose fields are an exec's.
type ClientMessage struct {
	Type   string `json:"type"`
	Cols   uint16 `json:"cols,omitzero"`
	Rows   uint16 `json:"rows,omitzero"`
	Signal string `json:"signal,omitzero"`
	Tree   bool   `json:"tree,omitzero"`
}

// Types of client messages.
const (
	TypeStart      = "start"
	TypeResize     = "resize"
	TypeSignal     = "signal"
	TypeCloseStdin = "close_stdin"
	TypePing       = "ping"
)

// fieldsOf says which fields each message may carry.
var fieldsOf = map[string]string{TypeResize: "cols rows", TypeSignal: "signal tree", TypeCloseStdin: "", TypePing: ""}

// MessageType reads the type of a client's text message, strictly enough to be sure that it is one object.
func MessageType(data []byte) (string, error) {
	var m struct {
		Type string         `json:"type"`
		Rest jsontext.Value `json:",embed"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		if err := strictjson.Decode(data, &m); err != nil {
			return "", err
		}
		return "", cay.Errorf(cay.InvalidRequest, "a message must be one JSON object").Because(err)
	}
	if m.Type == "" {
		return "", cay.Errorf(cay.InvalidRequest, "a message needs a `type`").On("type")
	}
	return m.Type, nil
}

// DecodeMessage decodes a text message that is not a start. The error is a *[cay.Error] of reason invalid_request.
func DecodeMessage(data []byte) (ClientMessage, error) {
	var m ClientMessage
	if err := strictjson.Decode(data, &m); err != nil {
		return ClientMessage{}, err
	}
	allowed, known := fieldsOf[m.Type]
	if !known {
		return ClientMessage{}, cay.Errorf(cay.InvalidRequest, "there is no message type %q", m.Type).On("type")
	}
	for field, set := range map[string]bool{"cols": m.Cols != 0, "rows": m.Rows != 0, "signal": m.Signal != "", "tree": m.Tree} {
		if set && !strings.Contains(allowed, field) {
			return ClientMessage{}, cay.Errorf(cay.InvalidRequest, "a message of type %s has no field %q", m.Type, field).On(field)
		}
	}
	switch m.Type {
	case TypeResize:
		if m.Cols == 0 || m.Rows == 0 {
			return ClientMessage{}, cay.Errorf(cay.InvalidRequest, "resize needs `cols` and `rows`, each at least 1").On("cols")
		}
	case TypeSignal:
		name, err := SignalName(m.Signal)
		if err != nil {
			return ClientMessage{}, err
		}
		m.Signal = name
	}
	return m, nil
}

// SignalName checks the form of a signal's name and drops a leading SIG. Which signals exist, the node knows.
func SignalName(s string) (string, error) {
	name := strings.TrimPrefix(s, "SIG")
	ok := name != "" && len(name) <= 12
	for _, c := range []byte(name) {
		ok = ok && (c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+')
	}
	if !ok {
		return "", cay.Errorf(cay.InvalidRequest, "`signal` must be a name such as INT, TERM or KILL").On("signal")
	}
	return name, nil
}

// Started, GapMessage, ExitMessage, ErrorMessage and Pong encode the server's text messages.
func Started(process cay.ID, offset, stdinOffset int64) ([]byte, error) {
	return encode(struct {
		Type        string `json:"type"`
		ProcessID   cay.ID `json:"process_id"`
		Offset      int64  `json:"offset"`
		StdinOffset int64  `json:"stdin_offset"`
	}{"started", process, offset, stdinOffset})
}

func GapMessage(s cay.Stream, g cay.Gap) ([]byte, error) {
	return encode(struct {
		Type   string `json:"type"`
		Stream string `json:"stream"`
		Offset int64  `json:"offset"`
		Bytes  int64  `json:"bytes"`
	}{"gap", s.String(), g.Offset, g.Bytes})
}

func ExitMessage(o Outcome, d Delivery) ([]byte, error) {
	return encode(struct {
		Type string `json:"type"`
		Exit
	}{"exit", Exit{o, d}})
}

func ErrorMessage(reason cay.ErrorReason, detail string) ([]byte, error) {
	return encode(struct {
		Type string `json:"type"`
		Failure
	}{"error", Failure{reason, detail}})
}

func Pong() []byte { return []byte(`{"type":"pong"}`) }

func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	return b, nil
}
