package router_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/router"
	"github.com/cayhq/cay/internal/node/router/agenttest"
	"github.com/cayhq/cay/internal/node/spool"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

const (
	hostileProcess = "prc_0000000000000000000000000h"
	hostileStream  = 5
)

func hello(change func(*guestv1.Hello)) []byte {
	h := &guestv1.Hello{Protocol: wire.GuestProtocol, Generation: 3, Processes: []*guestv1.Running{
		{ProcessId: hostileProcess, Pid: 7, Stream: hostileStream},
	}}
	if change != nil {
		change(h)
	}
	return agenttest.Encode(&guestv1.ToNode{Message: &guestv1.ToNode_Hello{Hello: h}})
}

func exitedFrame(produced int64) []byte {
	return agenttest.Encode(&guestv1.ToNode{Message: &guestv1.ToNode_Exited{Exited: &guestv1.Exited{ProcessId: hostileProcess, Produced: produced}}})
}

func data(stream uint64, offset int64, text string) []byte {
	return wire.AppendData(nil, wire.FrameStdout, stream, offset, []byte(text))
}

// hostile is a session whose agent says exactly the bytes given, on every connection anew, and reads what it is sent.
func hostile(t testing.TB, says ...[]byte) (s *router.Session, sp *spool.Spool, gaveUp chan string) {
	t.Helper()
	sp, err := spool.Open(t.TempDir(), spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	gaveUp = make(chan string, 1)
	var work sync.WaitGroup
	s = router.New(router.Config{
		Spool: sp, Timing: quick(), GiveUp: func(why string) { gaveUp <- why },
		Dial: func(ctx context.Context, p driver.Purpose) (net.Conn, error) {
			if p.Kind != wire.ConnControl {
				return nil, driver.ErrGone
			}
			node, agent := net.Pipe()
			work.Go(func() { io.Copy(io.Discard, agent) })
			work.Go(func() {
				for _, b := range says {
					agent.Write(b)
				}
			})
			return node, nil
		},
	})
	t.Cleanup(func() { s.Close(); work.Wait(); sp.Close() })
	return s, sp, gaveUp
}

func TestThreeViolationsEndTheSandbox(t *testing.T) {
	for name, says := range map[string][][]byte{
		"no hello":                        {exitedFrame(0)},
		"another protocol":                {hello(func(h *guestv1.Hello) { h.Protocol = 99 })},
		"a second hello":                  {hello(nil), hello(nil)},
		"a process id that is a path":     {hello(func(h *guestv1.Hello) { h.Processes[0].ProcessId = "../../etc/passwd" })},
		"a process twice":                 {hello(func(h *guestv1.Hello) { h.Processes = append(h.Processes, h.Processes[0]) })},
		"acknowledged beyond produced":    {hello(func(h *guestv1.Hello) { h.Processes[0].Acknowledged = 9 })},
		"output with a hole":              {hello(nil), data(hostileStream, 0, "abc"), data(hostileStream, 9, "x")},
		"output that begins in the air":   {hello(nil), data(hostileStream, 1000, "x")},
		"output replayed in a connection": {hello(nil), data(hostileStream, 0, "abc"), data(hostileStream, 0, "abc")},
		"output of a stream to come":      {hello(nil), data(1<<63, 0, "x")},
		"an offset near the end of time":  {hello(nil), data(hostileStream, 1<<62, "x")},
		"an answer nobody asked for":      {hello(nil), agenttest.Encode(&guestv1.ToNode{ReplyTo: 1 << 63, Message: &guestv1.ToNode_Done{Done: &guestv1.Done{}}})},
		"an answer of nothing":            {hello(nil), agenttest.Encode(&guestv1.ToNode{ReplyTo: 1})},
		"something unasked":               {hello(nil), agenttest.Encode(&guestv1.ToNode{Message: &guestv1.ToNode_Killed{Killed: &guestv1.Killed{}}})},
		"an exit with output missing":     {hello(nil), exitedFrame(77), data(1<<63, 0, "x")},
		"stdin frames":                    {hello(nil), wire.AppendData(nil, wire.FrameStdin, hostileStream, 0, []byte("x"))},
		"bulk frames":                     {hello(nil), wire.AppendFrame(nil, wire.Frame{Type: wire.FrameEnd})},
		"a frame that is too long":        {hello(nil), {0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
		"a message that is none":          {hello(nil), wire.AppendFrame(nil, wire.Frame{Type: wire.FrameMessage, Payload: []byte{0xff, 0xff}})},
		"an acknowledgement of stdin that was not sent": {hello(nil), agenttest.Encode(&guestv1.ToNode{
			Message: &guestv1.ToNode_StdinAck{StdinAck: &guestv1.StdinAck{ProcessId: hostileProcess, Offset: 1 << 40}},
		})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, gaveUp := hostile(t, says...)
			select {
			case <-gaveUp:
			case <-time.After(time.Minute):
				t.Fatal("it was let go on")
			}
		})
	}
}

func TestAnExitThatIsRepeatedCountsOnce(t *testing.T) {
	s, sp, gaveUp := hostile(t, hello(nil), data(hostileStream, 0, "abc"), exitedFrame(3), exitedFrame(3),
		agenttest.Encode(&guestv1.ToNode{Message: &guestv1.ToNode_Exited{Exited: &guestv1.Exited{ProcessId: hostileProcess, Code: 9, Produced: 3}}}),
		data(hostileStream, 3, "late"))
	if err := s.Connected(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the exit is there", func() bool {
		log, ok := sp.Get(hostileProcess)
		return ok && log.Process().Exit != nil
	})
	log, _ := sp.Get(hostileProcess)
	if e := log.Process().Exit; e.Code != 0 || e.StdoutLen != 3 {
		t.Fatalf("%+v", e)
	}
	select {
	case why := <-gaveUp:
		t.Fatal(why)
	default:
	}
}

func TestAGenerationNeverGoesBack(t *testing.T) {
	var mu sync.Mutex
	generation := uint64(9)
	agent := &agenttest.Agent{Generation: 9}
	r := start(t, agent, func(c *router.Config) {
		c.Dial = func(ctx context.Context, p driver.Purpose) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			node, inside := net.Pipe()
			says := hello(func(h *guestv1.Hello) { h.Generation, h.Processes = generation, nil })
			generation = 8
			go func() { // ends with the connection
				inside.Write(says)
				inside.Close()
			}()
			return node, nil
		}
	})
	select {
	case <-r.gaveUp:
	case <-time.After(time.Minute):
		t.Fatal("an older generation was accepted")
	}
}

func TestAGuestsProblemIsCutToWhatAGuestMaySay(t *testing.T) {
	agent := &agenttest.Agent{Answer: func(m *guestv1.ToAgent) *guestv1.ToNode {
		if m.GetStat() == nil {
			return nil
		}
		return &guestv1.ToNode{Message: &guestv1.ToNode_Problem{Problem: &guestv1.Problem{
			Reason: "internal", Detail: "\x1b[31m" + strings.Repeat("x", 5000), Field: "<script>",
		}}}
	}}
	r := start(t, agent)
	_, err := r.Stat(t.Context(), &guestv1.Stat{Path: "/"})
	var e *cay.Error
	if !asCay(err, &e) || e.Reason != cay.Unprocessable || len(e.Detail) > 520 || strings.Contains(e.Detail, "\x1b") || e.Field != "" {
		t.Fatalf("%#v", err)
	}
}

func asCay(err error, e **cay.Error) bool {
	x, ok := err.(*cay.Error)
	*e = x
	return ok
}

func TestAnAgentThatDoesNotReadCostsBoundedMemory(t *testing.T) {
	sp, err := spool.Open(t.TempDir(), spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var inside []net.Conn
	timing := quick()
	timing.PingAnswer, timing.Connected, timing.Answer = 200*time.Millisecond, 3*time.Second, 5*time.Second
	s := router.New(router.Config{
		Spool: sp, Timing: timing,
		Dial: func(ctx context.Context, p driver.Purpose) (net.Conn, error) {
			if len(inside) > 0 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			node, agent := net.Pipe()
			inside = append(inside, agent)
			go agent.Write(hello(func(h *guestv1.Hello) { h.Processes = nil }))
			return node, nil
		},
	})
	defer func() { s.Close(); inside[0].Close(); sp.Close() }()
	if err := s.Connected(t.Context()); err != nil {
		t.Fatal(err)
	}
	spec := argv("x")
	spec.Env = map[string]string{"BIG": strings.Repeat("x", 1<<20)}
	var all sync.WaitGroup
	var mu sync.Mutex
	busy := 0
	for range 30 {
		all.Go(func() {
			_, err := s.Start(t.Context(), router.StartSpec{ID: cay.NewID(cay.PrefixProcess), Spec: spec})
			if err == nil {
				t.Error("started")
			}
			mu.Lock()
			defer mu.Unlock()
			if cay.ReasonOf(err) == cay.Unavailable {
				busy++
			}
		})
	}
	all.Wait()
	if busy == 0 {
		t.Fatal("every request was queued")
	}
}

// Whatever an agent sends, nothing panics, nothing that it sent leaves the spool's bounds, and the session can be closed.
func FuzzAgent(f *testing.F) {
	f.Add(append(data(hostileStream, 0, "abc"), exitedFrame(3)...))
	f.Add(data(hostileStream, 1<<61, "x"))
	f.Add(agenttest.Encode(&guestv1.ToNode{Message: &guestv1.ToNode_StdinAck{StdinAck: &guestv1.StdinAck{ProcessId: hostileProcess, Offset: -1}}}))
	f.Add(agenttest.Encode(&guestv1.ToNode{ReplyTo: 1, Message: &guestv1.ToNode_Problem{Problem: &guestv1.Problem{Reason: "x"}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		sp, err := spool.Open(t.TempDir(), spool.Options{})
		if err != nil {
			t.Fatal(err)
		}
		node, agent := net.Pipe()
		read := make(chan struct{})
		go func() { defer close(read); io.Copy(io.Discard, agent) }()
		dialled := make(chan struct{}, 1)
		s := router.New(router.Config{Spool: sp, Timing: quick(), Dial: func(ctx context.Context, p driver.Purpose) (net.Conn, error) {
			select {
			case dialled <- struct{}{}:
				return node, nil
			default:
				return nil, driver.ErrGone
			}
		}})
		agent.Write(hello(nil))
		agent.Write(b)
		agent.Close()
		<-read
		s.Close()
		if log, ok := sp.Get(hostileProcess); ok && log.Produced() > int64(len(b)) {
			t.Fatalf("%d bytes of output out of %d", log.Produced(), len(b))
		}
		sp.Close()
	})
}

func FuzzHello(f *testing.F) {
	p, _ := proto.Marshal(&guestv1.ToNode{Message: &guestv1.ToNode_Hello{Hello: &guestv1.Hello{
		Protocol: wire.GuestProtocol, Generation: 1, Processes: []*guestv1.Running{{ProcessId: hostileProcess, Stream: 1, Produced: 5, StdinOffset: 2}},
	}}})
	f.Add(p)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > wire.MaxFrame {
			return
		}
		sp, err := spool.Open(t.TempDir(), spool.Options{})
		if err != nil {
			t.Fatal(err)
		}
		node, agent := net.Pipe()
		read := make(chan struct{})
		go func() { defer close(read); io.Copy(io.Discard, agent) }()
		dialled := make(chan struct{}, 1)
		s := router.New(router.Config{Spool: sp, Timing: quick(), Dial: func(ctx context.Context, p driver.Purpose) (net.Conn, error) {
			select {
			case dialled <- struct{}{}:
				return node, nil
			default:
				return nil, driver.ErrGone
			}
		}})
		agent.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.FrameMessage, Payload: bytes.Clone(b)}))
		agent.Close()
		<-read
		s.Close()
		sp.Close()
	})
}
