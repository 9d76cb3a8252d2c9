package process

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// poller waits for many descriptors in one goroutine. The runtime's own poller would do, at the price of about eight more system
// calls for each start, which are slow inside a sandbox.
type poller struct {
	epoll  int
	wake   int           // eventfd that ends run
	paused time.Duration // before the next round; run's alone

	mu     sync.Mutex
	tokens map[uint64]func() // a token, never a descriptor: those are used again while events of their former owners are on the way
	last   uint64
}

func newPoller() (*poller, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("make eventfd: %w", err)
	}
	p := &poller{epoll: epoll, wake: wake, tokens: map[uint64]func(){}}
	event := unix.EpollEvent{Events: unix.EPOLLIN} // token 0
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wake, &event); err != nil {
		p.close()
		return nil, fmt.Errorf("watch eventfd: %w", err)
	}
	return p, nil
}

func (p *poller) close() {
	unix.Close(p.epoll)
	unix.Close(p.wake)
}

// token makes a name under which ready is called.
func (p *poller) token(ready func()) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	p.tokens[p.last] = ready
	return p.last
}

// assign gives a token to somebody else. Its former owner may be called once more.
func (p *poller) assign(token uint64, ready func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens[token] = ready
}

func (p *poller) forget(token uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.tokens, token)
}

// control adds, changes or removes a descriptor. Errors are impossible for descriptors that are open and pollable, except ENOMEM
// and ENOSPC, which the caller answers by failing the start.
func (p *poller) control(op, fd int, events uint32, token uint64) error {
	event := unix.EpollEvent{Events: events, Fd: int32(token), Pad: int32(token >> 32)}
	return unix.EpollCtl(p.epoll, op, fd, &event)
}

// run calls what is ready, and settle after each round, until stop.
func (p *poller) run(settle func()) {
	var events [64]unix.EpollEvent
	for {
		n, err := unix.EpollWait(p.epoll, events[:], -1)
		if err != nil && err != unix.EINTR {
			return
		}
		for _, e := range events[:max(n, 0)] {
			token := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
			if token == 0 {
				return
			}
			p.mu.Lock()
			ready := p.tokens[token]
			p.mu.Unlock()
			if ready != nil {
				ready()
			}
		}
		settle()
		if p.paused > 0 {
			pause := unix.NsecToTimespec(int64(p.paused))
			_ = unix.Nanosleep(&pause, nil)
			p.paused = 0
		}
	}
}

// pause delays the next round. Only what run calls may call it.
func (p *poller) pause(d time.Duration) { p.paused = d }

// stop ends run. The caller waits for run before it closes p.
func (p *poller) stop() { _, _ = unix.Write(p.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }
