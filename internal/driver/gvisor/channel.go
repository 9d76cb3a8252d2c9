package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/wire"
)

// The agent's end of the channel may be anybody: whatever runs in the sandbox as root can connect as often as it likes.
const (
	socketName      = "a.sock"
	backlog         = 8               // connections that wait in the kernel
	unnamed         = 8               // connections that were accepted and have not said what they are
	preambleTimeout = 2 * time.Second // for that
	earlyTimeout    = time.Second     // for a bulk connection that comes before anybody waits for its token
	connectRate     = 500             // connections a second that are looked at, in the long run
	connectBurst    = 200
)

// channel is the socket of one sandbox: it tells the agent's connections apart and keeps, of control connections, the newest that
// nobody took yet. Bulk connections are for those who wait for their token. The agent may be quicker than who asked it to dial, so
// that a token nobody waits for yet has a moment; it counts as unnamed until then.
type channel struct {
	ln      *net.UnixListener
	limiter *rate.Limiter
	slots   chan struct{} // one for each unnamed connection
	ended   chan struct{} // closed by end
	work    sync.WaitGroup

	mu      sync.Mutex
	cause   error                                 // guarded by mu; why it ended
	pending net.Conn                              // guarded by mu; a control connection
	arrived chan struct{}                         // guarded by mu; closed and replaced when pending is set
	waiting map[[wire.TokenLen]byte]chan net.Conn // guarded by mu; by token
	awaited chan struct{}                         // guarded by mu; closed and replaced when waiting grows
	open    map[net.Conn]struct{}                 // guarded by mu; the unnamed
}

// listen binds the socket in dir, which holds nothing else and belongs to this user alone. The socket of an earlier process is
// replaced in place: the directory is shown in the sandbox, and the agent finds the new one there.
func listen(dir string) (*channel, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make %s: %w", dir, err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), socketName)
	defer f.Close() // FileListener takes a copy
	path := filepath.Join(dir, socketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the earlier socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, fmt.Errorf("bind %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	c := &channel{
		ln: ln.(*net.UnixListener), limiter: rate.NewLimiter(connectRate, connectBurst), slots: make(chan struct{}, unnamed),
		ended: make(chan struct{}), arrived: make(chan struct{}), awaited: make(chan struct{}),
		waiting: map[[wire.TokenLen]byte]chan net.Conn{}, open: map[net.Conn]struct{}{},
	}
	c.work.Go(c.accept)
	return c, nil
}

func (c *channel) accept() {
	for {
		select {
		case c.slots <- struct{}{}:
		case <-c.ended:
			return
		}
		if !c.pace() {
			return
		}
		conn, err := c.ln.Accept()
		if err != nil {
			<-c.slots
			select {
			case <-c.ended:
				return
			default:
			}
			// Out of file descriptors, or the like: the limiter keeps this from spinning.
			continue
		}
		if !c.admit(conn) {
			return
		}
		c.work.Go(func() {
			defer func() { <-c.slots }()
			c.name(conn)
		})
	}
}

// pace waits for the next connection's turn, or returns false at the end.
func (c *channel) pace() bool {
	timer := time.NewTimer(c.limiter.Reserve().Delay())
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.ended:
		return false
	}
}

// admit registers an unnamed connection, so that end can close it.
func (c *channel) admit(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		_ = conn.Close()
		return false
	}
	c.open[conn] = struct{}{}
	return true
}

// name reads what the connection is for and hands it on, or closes it.
func (c *channel) name(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(preambleTimeout))
	p, err := wire.ReadPreamble(conn)
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	early := time.NewTimer(earlyTimeout)
	defer early.Stop()
	for {
		c.mu.Lock()
		if err == nil && c.cause == nil && c.deliver(conn, p) {
			delete(c.open, conn)
			c.mu.Unlock()
			return
		}
		over, awaited := err != nil || c.cause != nil, c.awaited
		c.mu.Unlock()
		if !over {
			select {
			case <-awaited:
				continue
			case <-c.ended:
			case <-early.C:
			}
		}
		c.mu.Lock()
		delete(c.open, conn)
		c.mu.Unlock()
		_ = conn.Close()
		return
	}
}

// deliver needs mu.
func (c *channel) deliver(conn net.Conn, p wire.Preamble) bool {
	if p.Kind == wire.ConnBulk {
		to, ok := c.waiting[p.Token]
		if ok {
			delete(c.waiting, p.Token)
			to <- conn // has room for the one
		}
		return ok
	}
	if c.pending != nil {
		_ = c.pending.Close()
	}
	c.pending = conn
	close(c.arrived)
	c.arrived = make(chan struct{})
	return true
}

// dial returns the next connection of that purpose.
func (c *channel) dial(ctx context.Context, purpose driver.Purpose) (net.Conn, error) {
	if purpose.Kind == wire.ConnBulk {
		return c.dialBulk(ctx, purpose.Token)
	}
	for {
		c.mu.Lock()
		conn, cause, arrived := c.pending, c.cause, c.arrived
		c.pending = nil
		c.mu.Unlock()
		if cause != nil {
			return nil, cause
		}
		if conn != nil {
			return conn, nil
		}
		select {
		case <-arrived:
		case <-c.ended:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (c *channel) dialBulk(ctx context.Context, token [wire.TokenLen]byte) (net.Conn, error) {
	to := make(chan net.Conn, 1)
	c.mu.Lock()
	if c.cause != nil {
		defer c.mu.Unlock()
		return nil, c.cause
	}
	if _, taken := c.waiting[token]; taken {
		c.mu.Unlock()
		return nil, errors.New("the token is in use")
	}
	c.waiting[token] = to
	close(c.awaited)
	c.awaited = make(chan struct{})
	c.mu.Unlock()
	var err error
	select {
	case conn := <-to:
		return conn, nil
	case <-c.ended:
		err = c.why()
	case <-ctx.Done():
		err = ctx.Err()
	}
	c.mu.Lock()
	delete(c.waiting, token)
	c.mu.Unlock()
	select {
	case conn := <-to: // it arrived at the same moment
		_ = conn.Close()
	default:
	}
	return nil, err
}

func (c *channel) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// end closes the socket and all connections that nobody took. Dials fail with cause. It waits for the channel's goroutines.
func (c *channel) end(cause error) {
	c.mu.Lock()
	if c.cause == nil {
		c.cause = cause
		close(c.ended)
		_ = c.ln.Close()
		if c.pending != nil {
			_ = c.pending.Close()
			c.pending = nil
		}
		for conn := range c.open {
			_ = conn.Close()
		}
	}
	c.mu.Unlock()
	c.work.Wait()
}
