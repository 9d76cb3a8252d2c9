package jobs_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/nodes/nodetest"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// transcript is what one who follows a job has seen.
type transcript struct {
	mu     sync.Mutex
	frames []string // but for output
	out    strings.Builder
	at     []int64 // positions
	data   map[int64]int
	last   cay.JobFrame
}

func (s *transcript) take(f cay.JobFrame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = append(s.at, f.Seq)
	s.last = f
	switch f.Type {
	case "stdout", "stderr":
		s.out.Write(f.Data)
		if s.data == nil {
			s.data = map[int64]int{}
		}
		s.data[f.Seq] = len(f.Data)
	default:
		s.frames = append(s.frames, f.Type+" "+string(f.Status))
	}
	return nil
}

func (s *transcript) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// position is that of the last frame.
func (s *transcript) position() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.Seq
}

const whole = "status queued, status running, exit success"

// check fails the test unless positions grow and say how many bytes there were.
func (s *transcript) check(t *testing.T, want string) {
	t.Helper()
	if got := s.text(); got != want {
		t.Errorf("%d bytes, want %d", len(got), len(want))
	}
	for i := 1; i < len(s.at); i++ {
		if s.at[i] <= s.at[i-1] {
			t.Errorf("position %d follows %d", s.at[i], s.at[i-1])
		}
		if n := s.data[s.at[i]]; n > 0 && s.at[i]-s.at[i-1] != int64(n) {
			t.Errorf("%d bytes bring the position from %d to %d", n, s.at[i-1], s.at[i])
		}
	}
}

// slowly is a program that writes bytes as it is told to.
func slowly(pieces <-chan string) func(*nodetest.Process) *nodev1.Exit {
	return func(p *nodetest.Process) *nodev1.Exit {
		i := 0
		for piece := range pieces {
			p.Write(cay.Stream(1+i%2), piece)
			i++
		}
		return &nodev1.Exit{}
	}
}

func TestEveryWatcherHasExactlyTheBytesWheneverItComes(t *testing.T) {
	p := start(t)
	pieces := make(chan string)
	p.node.OnProcess = slowly(pieces)
	var all sync.WaitGroup
	// A server that dies ends its streams; whoever watches comes again, at the position that it has reached.
	first, die := context.WithCancel(t.Context())
	defer die()
	reborn := make(chan struct{})
	old := p.Jobs
	follow := func(id cay.ID, s *transcript, send func(cay.JobFrame) error) {
		all.Go(func() {
			err := old.Stream(first, project, id, 0, send)
			if first.Err() != nil {
				<-reborn
				err = p.Stream(t.Context(), project, id, s.position(), send)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	watch := func(id cay.ID) *transcript {
		s := &transcript{}
		follow(id, s, s.take)
		return s
	}
	gate := make(chan struct{})
	release := sync.OnceFunc(func() { close(gate) })
	defer release()
	p.node.OnCreate = func(context.Context, *nodev1.CreateRequest) error { <-gate; return nil }
	id := p.submit()
	watchers := []*transcript{watch(id)} // while it is queued
	release()
	text := randomText(900_000)
	var want strings.Builder
	write := func(n int) {
		for range n {
			piece := text[want.Len() : want.Len()+9_000]
			pieces <- piece
			want.WriteString(piece)
		}
	}
	write(20)
	watchers = append(watchers, watch(id), watch(id)) // in the middle
	hold, started := make(chan struct{}), make(chan struct{})
	slow := &transcript{}
	begun := sync.OnceFunc(func() { close(started) })
	follow(id, slow, func(f cay.JobFrame) error {
		if f.Type == "stdout" {
			begun()
			<-hold
		}
		return slow.take(f)
	})
	<-started
	write(30)
	// The node is restarted, and the server too.
	p.node.Drop(t)
	write(30)
	p.Crash()
	die()
	p.up()
	close(reborn)
	write(20)
	close(pieces)
	row := p.finished(id, cay.JobSuccess)
	p.clean()
	close(hold) // the slow one was held until all was over
	watchers = append(watchers, slow, watch(id))
	all.Wait()
	for i, s := range watchers {
		s.check(t, want.String())
		if got := strings.Join(s.frames, ", "); got != whole || s.last.Job == nil || s.last.Job.ID != row.ID || s.last.Seq != int64(want.Len())+3 {
			t.Errorf("watcher %d: %s, last %+v", i, got, s.last)
		}
	}
	// Whoever comes again goes on where it was, also in the middle of a piece, and after the end there is nothing.
	for _, after := range []int64{0, 1, 2, 3, 8_999, 450_001, int64(want.Len()) + 1, int64(want.Len()) + 2, int64(want.Len()) + 3} {
		s := &transcript{at: []int64{after}}
		if err := p.Stream(t.Context(), project, id, after, s.take); err != nil {
			t.Fatal(err)
		}
		s.check(t, want.String()[min(max(after-2, 0), int64(want.Len())):])
	}
}

func TestAWatcherGoesOnToTheNextAttempt(t *testing.T) {
	p := start(t)
	watched := make(chan struct{})
	p.node.OnProcess = func(q *nodetest.Process) *nodev1.Exit {
		if len(p.node.Processes("")) == 1 {
			q.Write(cay.Stdout, "lost")
			<-watched
			p.node.Emit(&nodev1.Event{SandboxId: q.Start.SandboxId, Event: &nodev1.Event_Ended{Ended: &nodev1.Ended{Reason: "worker_lost"}}})
			<-q.Gone
			return &nodev1.Exit{}
		}
		return prints("kept", 0)(q)
	}
	id := p.submit()
	s := &transcript{}
	seen := sync.OnceFunc(func() { close(watched) })
	if err := p.Stream(t.Context(), project, id, 0, func(f cay.JobFrame) error {
		err := s.take(f)
		if f.Type == "stdout" {
			seen()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	s.check(t, "lostkept")
	if got := strings.Join(s.frames, ", "); got != "status queued, status running, status queued, status running, exit success" || s.last.Seq != cay.JobAttemptSpan+4+3 || s.last.Attempt != 2 {
		t.Errorf("%s, last %+v", got, s.last)
	}
	// A position of the older attempt gets all of the newest.
	again := &transcript{}
	if err := p.Stream(t.Context(), project, id, 5, again.take); err != nil || again.text() != "kept" || again.at[0] != cay.JobAttemptSpan+1 {
		t.Errorf("%q from %v, %v", again.text(), again.at, err)
	}
}

func TestTheStreamOfAJobThatNeverRanEndsWithAnError(t *testing.T) {
	p := start(t, func(p *plane) { p.cfg.Concurrency = 1 })
	p.node.OnProcess = func(q *nodetest.Process) *nodev1.Exit { q.Killed(); return nodetest.KilledExit() }
	first := p.submit()
	nodetest.Eventually(t, "the first runs", func() bool { return len(p.node.Processes("")) == 1 })
	id := p.submit()
	s := &transcript{}
	var watching sync.WaitGroup
	watching.Go(func() {
		if err := p.Stream(t.Context(), project, id, 0, s.take); err != nil {
			t.Error(err)
		}
	})
	if _, err := p.Cancel(t.Context(), project, id); err != nil {
		t.Fatal(err)
	}
	watching.Wait()
	if got := strings.Join(s.frames, ", "); got != "status queued, error canceled" || s.last.Seq != 2 {
		t.Errorf("%s, last %+v", got, s.last)
	}
	if _, err := p.Cancel(t.Context(), project, first); err != nil {
		t.Fatal(err)
	}
}

func TestAWatcherThatLeavesOrFailsCostsNobodyAnything(t *testing.T) {
	p := start(t)
	pieces := make(chan string)
	p.node.OnProcess = slowly(pieces)
	id := p.submit()
	full := errors.New("full")
	var all sync.WaitGroup
	all.Go(func() {
		if err := p.Stream(t.Context(), project, id, 0, func(f cay.JobFrame) error {
			if f.Type == "stdout" {
				return full
			}
			return nil
		}); !errors.Is(err, full) {
			t.Errorf("a watcher that fails: %v", err)
		}
	})
	ctx, leave := context.WithCancel(t.Context())
	all.Go(func() {
		if err := p.Stream(ctx, project, id, 0, func(f cay.JobFrame) error {
			if f.Type == "stdout" {
				leave()
			}
			return nil
		}); !errors.Is(err, context.Canceled) {
			t.Errorf("a watcher that leaves: %v", err)
		}
	})
	pieces <- "some"
	all.Wait()
	close(pieces)
	p.finished(id, cay.JobSuccess)
	for _, after := range []int64{-1, cay.JobAttemptSpan} {
		if err := p.Stream(t.Context(), project, id, after, func(cay.JobFrame) error { return nil }); cay.ReasonOf(err) != cay.InvalidRequest {
			t.Errorf("from %d: %v", after, err)
		}
	}
	if err := p.Stream(t.Context(), stranger, id, 0, func(cay.JobFrame) error { return nil }); cay.ReasonOf(err) != cay.NotFound {
		t.Errorf("a stranger: %v", err)
	}
}

func TestManyWhoWaitForOneJobReadItOnce(t *testing.T) {
	p := start(t)
	gate := make(chan struct{})
	p.node.OnProcess = func(*nodetest.Process) *nodev1.Exit { <-gate; return &nodev1.Exit{} }
	id := p.submit()
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if row, err := p.Wait(ctx, project, id); err != nil || row.Status != cay.JobSuccess {
				t.Errorf("%+v, %v", row, err)
			}
		})
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if row, err := p.Wait(short, project, id); err != nil || row.Status.Finished() {
		t.Errorf("a wait that ends early: %+v, %v", row, err)
	}
	close(gate)
	all.Wait()
}
