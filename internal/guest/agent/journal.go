package agent

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"google.golang.org/protobuf/proto"
)

const (
	// sayPerSecond bounds what is told to the node; the node counts no more either.
	sayPerSecond = 20
	// maxUnsaid bounds what waits for a connection.
	maxUnsaid = 64
	// maxSaid bounds one message, in bytes.
	maxSaid = 1 << 10
)

// Journal is a slog.Handler that tells the node as well what is noted from the level of info on, for whom the sandbox belongs to. What
// is beyond its bounds is counted, and the count told with the next message.
type Journal struct {
	next slog.Handler
	said *said
	rest string // of the attributes that were given before
}

// said is what waits to be told.
type said struct {
	wake chan struct{}

	mu      sync.Mutex
	queue   []*guestv1.Log
	second  time.Time // that count is of
	count   int
	dropped int
}

// NewJournal makes a Journal in front of next.
func NewJournal(next slog.Handler) *Journal {
	return &Journal{next: next, said: &said{wake: make(chan struct{}, 1)}}
}

// Enabled is the contract of slog.Handler, as are those that follow.
func (j *Journal) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || j.next.Enabled(ctx, level)
}

// WithAttrs adds attributes.
func (j *Journal) WithAttrs(attrs []slog.Attr) slog.Handler {
	rest := j.rest
	for _, a := range attrs {
		rest += fmt.Sprintf(" %s=%v", a.Key, a.Value)
	}
	return &Journal{next: j.next.WithAttrs(attrs), said: j.said, rest: rest}
}

// WithGroup has no effect on what the node is told.
func (j *Journal) WithGroup(name string) slog.Handler {
	return &Journal{next: j.next.WithGroup(name), said: j.said, rest: j.rest}
}

// Handle never blocks, and calls nothing of the agent: it may be called with any of its locks held.
func (j *Journal) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		message := r.Message + j.rest
		r.Attrs(func(a slog.Attr) bool {
			message += fmt.Sprintf(" %s=%v", a.Key, a.Value)
			return len(message) < maxSaid
		})
		j.said.add(r.Level, message, time.Now())
	}
	if !j.next.Enabled(ctx, r.Level) {
		return nil
	}
	return j.next.Handle(ctx, r)
}

func (s *said) add(level slog.Level, message string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.second) >= time.Second {
		s.second, s.count = now, 0
	}
	if s.count >= sayPerSecond || len(s.queue) >= maxUnsaid {
		s.dropped++
		return
	}
	s.count++
	if s.dropped > 0 {
		message += fmt.Sprintf(" (%d more were left out)", s.dropped)
		s.dropped = 0
	}
	if len(message) > maxSaid {
		message = message[:maxSaid]
	}
	name := strings.ToLower(level.String())
	if level > slog.LevelError {
		name = "error"
	}
	s.queue = append(s.queue, &guestv1.Log{Level: name, Message: text(message), AtUnixMs: now.UnixMilli()})
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// appendPending appends frames of what is to be told.
func (s *said) appendPending(b []byte) []byte {
	s.mu.Lock()
	queue := s.queue
	s.queue = nil
	s.mu.Unlock()
	for _, m := range queue {
		payload, err := proto.Marshal(&guestv1.ToNode{Message: &guestv1.ToNode_Log{Log: m}})
		if err != nil {
			continue // it is bounded and UTF-8
		}
		b = wire.AppendFrame(b, wire.Frame{Type: wire.FrameMessage, Payload: payload})
	}
	return b
}
