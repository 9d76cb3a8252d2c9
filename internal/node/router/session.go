package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/spool"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// Session is one sandbox's agent as the node sees it. All methods are safe for concurrent use.
type Session struct {
	cfg    Config
	timing Timing
	ctx    func() context.Context // of background work; ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup
	closed chan struct{} // no further work; readers end

	bulk    chan struct{} // a token for each transfer under way
	ports   chan struct{} // a token for each connection to a port
	watches chan struct{} // a token for each watch

	lastActive atomic.Int64 // Unix ms
	foreground atomic.Int64

	saves  chan struct{} // wakes the saver
	saying saying

	mu         sync.Mutex
	conn       *connection   // nil: none
	connected  chan struct{} // closed while conn is there
	thawed     chan struct{} // closed while not frozen
	ended      bool
	generation uint64
	nextID     uint64
	nextStream uint64
	pending    map[uint64]*call
	processes  map[cay.ID]*Process
	streams    map[uint64]*Process // running ones
	names      map[string]*Process // running ones
	contexts   map[string]ContextInfo
	queues     map[string][]*Process // by context: the programs that run or wait in it, in their order
	dirty      map[*Process]struct{}
	lazy       map[*Process]struct{}
	lazyTimer  *time.Timer
	violations []time.Time
	gaveUp     bool
	greeted    bool // there was a hello
	adopting   bool // until the first hello: it may name processes that this node does not know
}

// errViolation is an agent that breaks the protocol.
var errViolation = errors.New("agent broke the protocol")

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errViolation, fmt.Sprintf(format, args...))
}

// New begins to talk to a sandbox's agent. Processes that the spool knows as running are taken over. Close ends it.
func New(cfg Config) *Session {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.GiveUp == nil {
		cfg.GiveUp = func(string) {}
	}
	if cfg.Ended == nil {
		cfg.Ended = func(spool.Process) {}
	}
	if cfg.Limits == nil {
		cfg.Limits = func() Limits { return Limits{} }
	}
	if cfg.Counters == nil {
		cfg.Counters = new(Counters)
	}
	// Request ids and stream numbers never come twice in a sandbox's life, which spans many Sessions.
	base := uint64(time.Now().UnixNano())
	s := &Session{
		cfg: cfg, timing: cfg.Timing.withDefaults(), closed: make(chan struct{}), connected: make(chan struct{}),
		thawed: make(chan struct{}), bulk: make(chan struct{}, maxBulk), ports: make(chan struct{}, maxPorts), watches: make(chan struct{}, maxWatches), saves: make(chan struct{}, 1),
		nextID: base, nextStream: base, adopting: true,
		pending: map[uint64]*call{}, processes: map[cay.ID]*Process{}, streams: map[uint64]*Process{}, names: map[string]*Process{},
		contexts: map[string]ContextInfo{}, queues: map[string][]*Process{},
		dirty: map[*Process]struct{}{}, lazy: map[*Process]struct{}{},
	}
	if !cfg.Frozen {
		close(s.thawed)
	}
	s.Touch()
	ctx, cancel := context.WithCancel(context.Background())
	s.ctx, s.cancel = func() context.Context { return ctx }, cancel
	s.takeOver()
	s.work.Go(func() { s.connect(ctx) })
	s.work.Go(func() { s.save(ctx) })
	return s
}

// Close ends all connections and waits for the Session's goroutines. The sandbox and its processes run on.
func (s *Session) Close() {
	s.mu.Lock()
	select {
	case <-s.closed:
	default:
		close(s.closed)
		if s.lazyTimer != nil {
			s.lazyTimer.Stop()
		}
		for _, p := range s.processes {
			p.stopTimers()
		}
	}
	s.mu.Unlock()
	s.cancel()
	s.work.Wait()
}

// End settles every running process as ended with its sandbox. The Session must be closed as well.
func (s *Session) End() {
	s.mu.Lock()
	s.ended = true
	running := make([]*Process, 0, len(s.streams))
	for _, p := range s.streams {
		running = append(running, p)
	}
	s.mu.Unlock()
	for _, p := range running {
		p.finish(SandboxEnded())
	}
}

// MarkOOM makes the exits that follow say oom: the kernel's memory limit ended the whole sandbox.
func (s *Session) MarkOOM() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.streams {
		p.mu.Lock()
		p.oom = true
		p.mu.Unlock()
	}
}

// Freeze stops the clocks of timeouts, holds and pings; Thaw starts them again. Both are idempotent.
func (s *Session) Freeze() { s.setFrozen(true) }

// Thaw is described at Freeze.
func (s *Session) Thaw() { s.setFrozen(false) }

func (s *Session) setFrozen(frozen bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.thawed:
		if !frozen {
			return
		}
		s.thawed = make(chan struct{})
	default:
		if frozen {
			return
		}
		close(s.thawed)
	}
	for _, p := range s.streams {
		p.setFrozen(frozen)
		s.markDirty(p)
	}
}

func (s *Session) frozen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isFrozen()
}

// isFrozen needs s.mu.
func (s *Session) isFrozen() bool {
	select {
	case <-s.thawed:
		return false
	default:
		return true
	}
}

// Touch notes activity now.
func (s *Session) Touch() { s.lastActive.Store(time.Now().UnixMilli()) }

// Activity says whether a foreground reader is there and when the sandbox was last used.
func (s *Session) Activity() (foreground bool, last time.Time) {
	return s.foreground.Load() > 0, time.UnixMilli(s.lastActive.Load())
}

// Connected waits until the agent has said hello on a live connection. The end of ctx is cay.Unavailable.
func (s *Session) Connected(ctx context.Context) error {
	_, err := s.connection(ctx)
	return err
}

func (s *Session) connection(ctx context.Context) (*connection, error) {
	for {
		s.mu.Lock()
		conn, connected := s.conn, s.connected
		s.mu.Unlock()
		if conn != nil {
			return conn, nil
		}
		select {
		case <-connected:
		case <-s.closed:
			return nil, errClosed()
		case <-ctx.Done():
			return nil, cay.Errorf(cay.Unavailable, "the sandbox's agent does not answer; try again").After(time.Second).Because(ctx.Err())
		}
	}
}

func errClosed() error {
	return cay.Errorf(cay.Unavailable, "the worker is restarting; try again").After(time.Second)
}

// connect keeps a control connection until ctx ends or the sandbox is gone.
func (s *Session) connect(ctx context.Context) {
	pause := time.Duration(0)
	for ctx.Err() == nil {
		conn, err := s.cfg.Dial(ctx, driver.Purpose{Kind: wire.ConnControl})
		if err != nil {
			if errors.Is(err, driver.ErrGone) {
				return // the driver's event says so to whoever must know
			}
			pause = min(max(2*pause, 20*time.Millisecond), time.Second)
			rest(ctx, pause)
			continue
		}
		began := time.Now()
		err = s.serve(ctx, conn)
		if ctx.Err() != nil {
			return
		}
		s.cfg.Log.Debug("agent connection ended", "error", err)
		if (errors.Is(err, errViolation) || errors.Is(err, wire.ErrFrame)) && s.strike(err) {
			return
		}
		if time.Since(began) > time.Second {
			pause = 0
		} else if pause = min(max(2*pause, 10*time.Millisecond), time.Second); true {
			rest(ctx, pause) // an agent that comes and goes costs us at most this often
		}
	}
}

// rest waits for d or the end of ctx.
func rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// strike counts a violation; true: it was one too many.
func (s *Session) strike(why error) bool {
	s.cfg.Log.Warn("agent broke the protocol", "error", why)
	s.cfg.Counters.Violations.Add(1)
	now := time.Now()
	s.mu.Lock()
	recent := s.violations[:0]
	for _, t := range s.violations {
		if now.Sub(t) < time.Minute {
			recent = append(recent, t)
		}
	}
	s.violations = append(recent, now)
	over := len(s.violations) >= maxViolation && !s.gaveUp
	if over {
		s.gaveUp = true
	}
	s.mu.Unlock()
	if over {
		s.cfg.GiveUp("its agent broke the protocol")
	}
	return over
}

// serve speaks on one connection until it fails.
func (s *Session) serve(ctx context.Context, nc net.Conn) error {
	c := newConnection(nc)
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	defer nc.Close()
	nc.SetReadDeadline(time.Now().Add(s.timing.Hello))
	hello, err := c.readHello()
	if err != nil {
		return err
	}
	nc.SetReadDeadline(time.Time{})
	if err := s.accept(c, hello); err != nil {
		return err
	}
	inner, cancel := context.WithCancel(ctx)
	var both sync.WaitGroup
	both.Go(func() { s.write(inner, c) })
	both.Go(func() { s.ping(inner, c) })
	defer both.Wait()
	defer cancel()
	defer nc.Close()
	defer s.leave(c)
	for {
		f, err := c.reader.Read()
		if err != nil {
			return err
		}
		c.heard.Store(time.Now().UnixNano())
		if err := s.handle(c, f); err != nil {
			return err
		}
	}
}

// accept checks a hello and makes c the connection in use: what the agent must be told again goes out first.
func (s *Session) accept(c *connection, h *guestv1.Hello) error {
	if h.Protocol != wire.GuestProtocol && (wire.GuestProtocol == 1 || h.Protocol != wire.GuestProtocol-1) {
		return violation("protocol %d", h.Protocol)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.Generation < s.generation {
		return violation("generation %d after %d", h.Generation, s.generation)
	}
	if err := s.reconcile(c, h); err != nil {
		return err
	}
	if s.greeted {
		s.cfg.Counters.Reconnects.Add(1)
	}
	s.generation, s.greeted = h.Generation, true
	s.adopting = false
	s.conn = c
	close(s.connected)
	for _, id := range sortedIDs(s.pending) {
		c.out.add(s.pending[id].encoded)
	}
	return nil
}

// leave takes c out of use. Requests that may not be made twice fail; the others wait for the next connection.
func (s *Session) leave(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c {
		return
	}
	s.conn = nil
	s.connected = make(chan struct{})
	for id, call := range s.pending {
		if !call.repeatable {
			delete(s.pending, id)
			call.fail(cay.Errorf(cay.Unavailable, "the connection to the sandbox was lost; whether it was done is not known").After(time.Second))
		}
	}
}

// ping tests a connection that is silent, and closes it when there is no sign of life.
func (s *Session) ping(ctx context.Context, c *connection) {
	for {
		rest(ctx, s.timing.Ping)
		if ctx.Err() != nil {
			return
		}
		if s.frozen() || time.Since(time.Unix(0, c.heard.Load())) < s.timing.Ping {
			continue
		}
		asked := time.Now()
		pinged, cancel := context.WithTimeout(ctx, s.timing.PingAnswer)
		s.call(pinged, &guestv1.ToAgent{Message: &guestv1.ToAgent_Ping{Ping: &guestv1.Ping{}}}, false)
		cancel()
		if ctx.Err() == nil && !s.frozen() && time.Since(asked) >= s.timing.PingAnswer && time.Unix(0, c.heard.Load()).Before(asked) {
			s.cfg.Log.Info("agent is silent, its connection is given up")
			c.nc.Close()
			return
		}
	}
}
