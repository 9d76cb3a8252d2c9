package clienttest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"unicode/utf8"
)

// frame is a piece of a job's stream. Positions are those of the API: one for each status and the exit, one for each byte.
type frame struct {
	seq  int
	kind string
	doc  map[string]any
	data []byte // of stdout and stderr
}

const (
	seqQueued  = 1
	seqRunning = 2 // output begins after it
)

// frames answers what follows a position, whether that is the end, and channels one of which closes when there is more.
func (s *Server) frames(j *job, after int) (out []frame, finished bool, changed, more <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	attempt := 0
	if j.process != nil {
		attempt = 1
	}
	if after < seqQueued {
		out = append(out, frame{seq: seqQueued, kind: "status", doc: map[string]any{"data": "queued", "attempt": 0}})
	}
	finished, changed = j.finishedAt != "", j.changed
	last := seqQueued
	var exit *exitDoc
	if j.process != nil {
		last = seqRunning
		if after < seqRunning {
			out = append(out, frame{seq: seqRunning, kind: "status", doc: map[string]any{"data": "running", "attempt": attempt}})
		}
		var chunks []chunk
		chunks, exit, more = j.process.from(0)
		for _, c := range chunks {
			begin := seqRunning + c.offset
			last = begin + len(c.data)
			if last > after {
				out = append(out, frame{seq: last, kind: streamName(c.stream), data: c.data[max(0, after-begin):]})
			}
		}
	}
	if !finished || last+1 <= after {
		return out, finished, changed, more
	}
	end := frame{seq: last + 1, kind: "error", doc: map[string]any{"data": j.status, "reason": "canceled", "detail": "the job was canceled"}}
	switch {
	case j.fault != nil:
		end.doc["reason"], end.doc["detail"] = j.fault["reason"], j.fault["detail"]
	case exit != nil:
		end.kind = "exit"
		end.doc = map[string]any{"data": j.status, "exit_code": exit.ExitCode, "signal": exit.Signal, "timed_out": j.timedOut, "duration_ms": exit.DurationMS}
	}
	return append(out, end), true, changed, more
}

// streamJob sends a job's frames as server-sent events. Where [Server.CutAfter] says so it ends as a server does that restarts: in
// good order, in the middle.
func (s *Server) streamJob(w http.ResponseWriter, r *http.Request, j *job) {
	after, _ := strconv.Atoi(r.URL.Query().Get("seq"))
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		after, _ = strconv.Atoi(last)
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer s.track(cancel)()
	left := s.takeCut()
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, ": begin\n\n")
	for {
		frames, finished, changed, more := s.frames(j, after)
		for _, f := range frames {
			data := f.data
			if left >= 0 && data != nil {
				data = data[:min(left, len(data))]
				left -= len(data)
			}
			f.seq -= len(f.data) - len(data)
			if f.data == nil || len(data) > 0 {
				after = f.seq
				f.send(w, data)
			}
			if left == 0 {
				return
			}
		}
		if http.NewResponseController(w).Flush() != nil || finished {
			return
		}
		select {
		case <-changed:
		case <-more:
		case <-ctx.Done():
			panic(http.ErrAbortHandler)
		}
	}
}

func (f frame) send(w http.ResponseWriter, data []byte) {
	doc := map[string]any{"type": f.kind, "seq": f.seq, "ts": now()}
	for k, v := range f.doc {
		doc[k] = v
	}
	switch {
	case data == nil:
	case utf8.Valid(data):
		doc["data"] = string(data)
	default:
		doc["data_base64"] = data
	}
	text, _ := json.Marshal(doc)
	fmt.Fprintf(w, "event: %s\nid: %d\ndata: %s\n\n", f.kind, f.seq, text)
}
