// Package duplex joins two connections whose directions end one by one. It does not know who speaks over them, or what.
package duplex

import (
	"io"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is a connection whose directions end one by one.
type Conn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// hangUpPoll is how often a connection whose one direction has ended is looked at.
const hangUpPoll = time.Second

// buffers recycles what a direction is copied by.
var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// Join copies both ways until both directions have ended. A connection that breaks ends the other one. Neither has a time limit: what
// stands still stands still.
//
// socket is what client's bytes come by. Once client has ended its direction it is looked at each second: where the other end has
// closed the connection altogether, which a read cannot tell from the end of one direction, server is closed. One that does not notice
// must not keep the connection.
func Join(client Conn, socket syscall.Conn, server Conn) {
	answered := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		pipe(server, client)
		untilHungUp(socket, answered)
		server.Close()
	})
	pipe(client, server)
	close(answered)
	asking.Wait()
}

// pipe copies one direction to its end and hands the end on.
func pipe(to, from Conn) {
	buf := buffers.Get().(*[32 << 10]byte)
	defer buffers.Put(buf)
	// Without the methods by which io.Copy would have the kernel move the bytes: gVisor's splice costs more than it saves.
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, buf[:])
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		to.Close()
		from.Close()
	}
}

// untilHungUp waits until answered, or until the other end of conn has closed it.
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
