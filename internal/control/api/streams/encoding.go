package streams

import (
	"encoding/base64"

	"github.com/cayhq/cay"
)

// Encoding is how output travels in JSON.
type Encoding string

const (
	UTF8   Encoding = "utf8"   // as text; bytes that are none become U+FFFD and set lossy
	Base64 Encoding = "base64" // exact
)

// Exit is the end of a process as every form of exec tells it: the fields without output.
type Exit struct {
	Outcome
	Delivery
}

// Outcome is how the process ended.
type Outcome struct {
	ProcessID  cay.ID         `json:"process_id"`
	ExitCode   int            `json:"exit_code" doc:"128+N for signal N; 127 not found, 126 not executable"`
	Signal     *string        `json:"signal" doc:"Without SIG; null when it exited by itself"`
	OK         bool           `json:"ok" doc:"Exit code 0 and not timed out"`
	Reason     cay.ExitReason `json:"reason" enum:"exited,signaled,timeout,oom,killed,start_failed,sandbox_ended"`
	TimedOut   bool           `json:"timed_out"`
	Killed     bool           `json:"killed" doc:"Ended by the platform or a client"`
	OOM        bool           `json:"oom"`
	DurationMS int64          `json:"duration_ms"`
	StdoutSize int64          `json:"stdout_size" doc:"True size in bytes, whatever was kept"`
	StderrSize int64          `json:"stderr_size" doc:"True size in bytes, whatever was kept"`
	Detail     string         `json:"detail,omitzero" doc:"Why it did not start"`
}

// Delivery is what came of the output on its way to this reader.
type Delivery struct {
	StdoutGap *cay.Gap  `json:"stdout_gap,omitzero" doc:"The first run of stdout that is missing"`
	StderrGap *cay.Gap  `json:"stderr_gap,omitzero" doc:"The first run of stderr that is missing"`
	Truncated PerStream `json:"truncated" doc:"Less than the process wrote was kept or delivered"`
	Lossy     PerStream `json:"lossy" doc:"Bytes that are no UTF-8 became U+FFFD"`
}

// PerStream says something of each stream.
type PerStream struct {
	Stdout bool `json:"stdout"`
	Stderr bool `json:"stderr"`
}

func (p *PerStream) set(s cay.Stream) {
	if s == cay.Stderr {
		p.Stderr = true
	} else {
		p.Stdout = true
	}
}

// AddGap notes that bytes of a stream are missing, and keeps g if it is the first of them.
func (d *Delivery) AddGap(s cay.Stream, g *cay.Gap) {
	d.Truncated.set(s)
	at := &d.StdoutGap
	if s == cay.Stderr {
		at = &d.StderrGap
	}
	if *at == nil {
		*at = g
	}
}

// base64Run encodes bytes that arrive in chunks as one base64 value.
type base64Run struct {
	pending  [2]byte
	npending int
}

func (b *base64Run) append(dst, p []byte) []byte {
	for b.npending > 0 && len(p) > 0 {
		if b.npending == 2 {
			dst = base64.StdEncoding.AppendEncode(dst, []byte{b.pending[0], b.pending[1], p[0]})
			b.npending, p = 0, p[1:]
			break
		}
		b.pending[1], b.npending, p = p[0], 2, p[1:]
	}
	if b.npending > 0 {
		return dst
	}
	n := len(p) - len(p)%3
	dst = base64.StdEncoding.AppendEncode(dst, p[:n])
	b.npending = copy(b.pending[:], p[n:])
	return dst
}

func (b *base64Run) end(dst []byte) []byte {
	dst = base64.StdEncoding.AppendEncode(dst, b.pending[:b.npending])
	b.npending = 0
	return dst
}
