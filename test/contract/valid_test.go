package contract

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay/internal/testkit"
)

// TestEveryOperationAnswersAValidCallAsTheDocumentSays is also where a new operation is missed: it needs an entry in the table.
func TestEveryOperationAnswersAValidCallAsTheDocumentSays(t *testing.T) {
	doc, _ := load(t)
	inst := testkit.Server(t)
	known := map[string]bool{}
	common := newStage(t)
	for _, op := range doc.operations {
		known[op.id] = true
		t.Run(op.id, func(t *testing.T) {
			entry, ok := calls[op.id]
			if !ok {
				t.Fatalf("%s %s has no valid call in the table of calls_test.go", op.method, op.path)
			}
			s := common.in(t)
			if entry.spoils {
				s = newStage(t)
			}
			for _, make := range append([]func(*stage) call{entry.call}, entry.more...) {
				c := make(s)
				if c.socket != nil {
					converse(t, op, s, c)
					continue
				}
				r := c.request(op, s.box.ID, inst.Key)
				a, err := send(inst.Listen, r)
				if err != nil {
					t.Errorf("%v: %v", r, err)
					continue
				}
				for _, fault := range doc.faults(op, r, a) {
					t.Errorf("%v: %v: %v", r, a, fault)
				}
				if c.want != 0 && a.status != c.want || c.want == 0 && a.status >= 300 {
					t.Errorf("%v: %v, want %d", r, a, c.want)
				}
				if c.until != "" && (len(a.events) == 0 || a.events[len(a.events)-1].name != c.until) {
					t.Errorf("%v: no event %s among %d", r, c.until, len(a.events))
				}
				discard(t, op, a)
			}
		})
	}
	for id := range calls {
		if !known[id] {
			t.Errorf("the table has a call of %s, which the document does not", id)
		}
	}
}

// discard deletes what a call has made.
func discard(t testing.TB, op *operation, a answer) {
	if a.status != 201 && a.status != 202 {
		return
	}
	var sb struct{ ID, JobID, SessionID string }
	for part, made := range map[string]*string{"submit-job": &sb.JobID, "create-session": &sb.SessionID} {
		if !strings.HasSuffix(op.id, part) {
			continue
		}
		if err := json.Unmarshal(a.body, &sb); err != nil {
			t.Fatal(err)
		}
		target := map[string]string{"submit-job": "/v1/jobs/", "create-session": "/v1/sessions/"}[part] + cmp.Or(*made, sb.ID)
		if err := ask(t, "DELETE", target, nil, 0, nil); err != nil {
			t.Error(err)
		}
		return
	}
	if op.id != "create-sandbox" {
		return
	}
	if err := json.Unmarshal(a.body, &sb); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := testkit.Server(t).DeleteSandbox(ctx, sb.ID); err != nil {
		t.Error(err)
	}
}

// converse opens a WebSocket, says what is to be said and reads to the server's close.
func converse(t *testing.T, op *operation, s *stage, c call) {
	t.Helper()
	if strings.HasSuffix(op.id, "stream-job") || op.id == "simple-stream" {
		follow(t, op, c.target(op, s.box.ID, nil))
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	socket, resp, err := s.box.DialSocket(ctx, c.target(op, s.box.ID, nil))
	if err != nil || socket == nil {
		t.Fatalf("%v %v", resp, err)
	}
	defer socket.Drop()
	if _, named := op.responses[101]; !named {
		t.Error("the document does not name the status 101")
	}
	for _, m := range c.socket {
		if err := socket.Send(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	if c.stdin != "" {
		if err := socket.Stdin(ctx, []byte(c.stdin)); err != nil {
			t.Fatal(err)
		}
	}
	var seen []string
	for {
		msg, _, channel, err := socket.Next(ctx)
		if err != nil {
			if code := websocket.CloseStatus(err); code != websocket.StatusNormalClosure {
				t.Errorf("after %v: closed with %v: %v", seen, code, err)
			}
			return
		}
		if channel == 0 {
			seen = append(seen, msg.Type)
		} else {
			seen = append(seen, fmt.Sprint(channel))
		}
		if msg.Type == "error" {
			t.Errorf("%+v", msg)
		}
	}
}
