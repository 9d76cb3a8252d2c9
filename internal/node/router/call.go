package router

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"google.golang.org/protobuf/proto"
)

// call is a request that waits for its answer.
type call struct {
	encoded    []byte
	repeatable bool // may be sent again on the next connection
	answer     chan *guestv1.ToNode
	seen       func(*guestv1.ToNode) // called in the order of arrival, with s.mu; may be nil
	failed     chan error
}

func (c *call) fail(err error) { c.failed <- err }

// call sends m and returns the answer; a Problem is an error. The id is filled in. It waits for a connection and for the answer as
// long as ctx and the timings allow.
func (s *Session) call(ctx context.Context, m *guestv1.ToAgent, repeatable bool) (*guestv1.ToNode, error) {
	return s.callAnswered(ctx, m, repeatable, nil)
}

// callAnswered is call with a function that sees the answer before anything that the agent sent later is looked at.
func (s *Session) callAnswered(ctx context.Context, m *guestv1.ToAgent, repeatable bool, seen func(*guestv1.ToNode)) (*guestv1.ToNode, error) {
	return s.callWithin(ctx, s.timing.Answer, m, repeatable, seen)
}

func (s *Session) callWithin(ctx context.Context, patience time.Duration, m *guestv1.ToAgent, repeatable bool, seen func(*guestv1.ToNode)) (*guestv1.ToNode, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := s.send(ctx, m, repeatable, seen)
	if err != nil {
		return nil, err
	}
	id := m.Id
	defer func() {
		s.mu.Lock()
		delete(s.pending, id)
		s.mu.Unlock()
	}()
	select {
	case answer := <-c.answer:
		if p := answer.GetProblem(); p != nil {
			return nil, guestError(p)
		}
		return answer, nil
	case err := <-c.failed:
		return nil, err
	case <-s.closed:
		return nil, errClosed()
	case <-ctx.Done():
		if ctx.Err() == context.DeadlineExceeded {
			return nil, cay.Errorf(cay.Timeout, "the sandbox's agent did not answer in time").Because(ctx.Err())
		}
		return nil, ctx.Err()
	}
}

// send registers m and queues it on the connection, waiting for one if need be.
func (s *Session) send(ctx context.Context, m *guestv1.ToAgent, repeatable bool, seen func(*guestv1.ToNode)) (*call, error) {
	waited, cancel := context.WithTimeout(ctx, s.timing.Connected)
	defer cancel()
	c := &call{repeatable: repeatable, seen: seen, answer: make(chan *guestv1.ToNode, 1), failed: make(chan error, 1)}
	for {
		if _, err := s.connection(waited); err != nil {
			return nil, err
		}
		s.mu.Lock()
		if s.conn == nil {
			s.mu.Unlock()
			continue
		}
		if len(s.pending) >= maxPending {
			s.mu.Unlock()
			return nil, errBusy()
		}
		s.nextID++
		m.Id = s.nextID
		encoded, err := proto.Marshal(m)
		if err != nil || len(encoded) > wire.MaxMessage {
			s.mu.Unlock()
			return nil, cay.Errorf(cay.InvalidRequest, "the request is too large, or holds text that is not UTF-8").Because(err)
		}
		c.encoded = wire.AppendMessage(nil, encoded)
		if !s.conn.out.add(c.encoded) {
			s.mu.Unlock()
			return nil, errBusy()
		}
		s.pending[m.Id] = c
		s.mu.Unlock()
		return c, nil
	}
}

func sortedIDs(m map[uint64]*call) []uint64 { return slices.Sorted(maps.Keys(m)) }

// answered hands an answer to its request. One that nobody waits for any longer is ignored; one to a request that never was is a
// violation.
func (s *Session) answered(m *guestv1.ToNode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.ReplyTo > s.nextID {
		return violation("answer to %d, which was not asked", m.ReplyTo)
	}
	if m.Message == nil {
		return violation("empty answer")
	}
	if c, ok := s.pending[m.ReplyTo]; ok {
		delete(s.pending, m.ReplyTo)
		if c.seen != nil {
			c.seen(m)
		}
		c.answer <- m
	}
	return nil
}

// guestReasons are the reasons that a guest may cause. Whatever else it says is made unprocessable: nothing inside may look like a
// fault of the platform.
var guestReasons = map[cay.ErrorReason]bool{
	cay.NotFound: true, cay.Forbidden: true, cay.AlreadyExists: true, cay.Conflict: true, cay.Unprocessable: true, cay.DiskFull: true,
	cay.PreconditionFailed: true, cay.PayloadTooLarge: true, cay.RangeNotSatisfiable: true,
}

const maxDetail = 512

func guestError(p *guestv1.Problem) error {
	reason := cay.ErrorReason(p.Reason)
	if !guestReasons[reason] {
		reason = cay.Unprocessable
	}
	e := &cay.Error{Reason: reason, Detail: cleanText(p.Detail, maxDetail)}
	if e.Detail == "" {
		e.Detail = "refused inside the sandbox"
	}
	if len(p.Field) <= 64 && strings.Trim(p.Field, "abcdefghijklmnopqrstuvwxyz_.") == "" {
		e.Field = p.Field
	}
	return e
}

// cleanText makes guest text fit for a person's terminal and a log: valid UTF-8, printable, at most limit bytes.
func cleanText(text string, limit int) string {
	var b strings.Builder
	for _, r := range text {
		if b.Len()+utf8.UTFMax > limit {
			b.WriteString("…")
			break
		}
		if !unicode.IsPrint(r) {
			r = '\uFFFD'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// unexpected is an answer of the wrong kind: the agent is broken or hostile.
func (s *Session) unexpected() error {
	s.mu.Lock()
	c := s.conn
	s.mu.Unlock()
	if s.strike(violation("answer of the wrong kind")); c != nil {
		c.nc.Close()
	}
	return cay.Errorf(cay.Unavailable, "the sandbox's agent gave no usable answer").After(time.Second)
}

// done makes a request whose only good answer is Done.
func (s *Session) done(ctx context.Context, m *guestv1.ToAgent, repeatable bool) error {
	answer, err := s.call(ctx, m, repeatable)
	if err != nil {
		return err
	}
	if answer.GetDone() == nil {
		return s.unexpected()
	}
	return nil
}
