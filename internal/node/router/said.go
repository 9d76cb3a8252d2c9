package router

import (
	"fmt"
	"sync"
	"time"

	"github.com/cayhq/cay/internal/wire/guestv1"
)

const (
	saidPerSecond = 20      // messages of an agent that are passed on, also at once
	maxSaid       = 4 << 10 // bytes of one
)

// saying bounds what an agent may have noted down. Messages beyond it are counted, and the next that passes says how many.
type saying struct {
	mu      sync.Mutex
	left    float64 // guarded by mu; messages that may pass now
	at      time.Time
	dropped int64
}

// pass reports whether a message may be passed on, and how many before it were not.
func (l *saying) pass(now time.Time) (dropped int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at.IsZero() {
		l.left = saidPerSecond
	} else {
		l.left = min(saidPerSecond, l.left+max(0, now.Sub(l.at).Seconds())*saidPerSecond)
	}
	l.at = now
	if l.left < 1 {
		l.dropped++
		return 0, false
	}
	l.left--
	dropped, l.dropped = l.dropped, 0
	return dropped, true
}

// said passes on what the agent wants its sandbox's owner to know.
func (s *Session) said(m *guestv1.Log) {
	if s.cfg.Said == nil {
		return
	}
	dropped, ok := s.saying.pass(time.Now())
	if !ok {
		return
	}
	if dropped > 0 {
		s.cfg.Said("warn", fmt.Sprintf("%d messages of the agent were dropped: more than %d a second came", dropped, saidPerSecond))
	}
	level := m.GetLevel()
	switch level {
	case "debug", "info", "warn", "error":
	default:
		level = "info"
	}
	message := m.GetMessage()
	s.cfg.Said(level, message[:min(len(message), maxSaid+1)]) // one byte more shows that something was cut
}
