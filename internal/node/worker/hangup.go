package worker

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hangUpPoll is how often a connection whose one direction has ended is looked at.
const hangUpPoll = time.Second

// untilHungUp waits until answered, or until the other end has closed the connection altogether, which a read cannot tell from the end
// of one direction: a server inside that does not notice must not keep the connection.
func untilHungUp(conn syscall.Conn, answered <-chan struct{}) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	tick := time.NewTicker(hangUpPoll)
	defer tick.Stop()
	for {
		hungUp := false
		err := raw.Control(func(fd uintptr) {
			look := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(look, 0)
			hungUp = err == nil && n > 0 && look[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
		})
		if err != nil || hungUp {
			return
		}
		select {
		case <-tick.C:
		case <-answered:
			return
		}
	}
}
