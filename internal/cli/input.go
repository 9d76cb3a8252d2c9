package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// input reads standard input in a way that can be stopped: a read of a terminal or pipe would otherwise outlive the command, and
// swallow what is meant for whoever comes next.
type input struct {
	r    io.Reader
	fd   int // of a file that poll can wait for; -1: r is read directly
	wake [2]*os.File
}

func newInput(r io.Reader) (*input, error) {
	in := &input{r: r, fd: -1}
	f, ok := r.(*os.File)
	if !ok {
		return in, nil
	}
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("prepare standard input: %w", err)
	}
	in.fd, in.wake = int(f.Fd()), [2]*os.File{pr, pw}
	return in, nil
}

// Read answers io.EOF once stop was called.
func (in *input) Read(p []byte) (int, error) {
	if in.fd < 0 {
		return in.r.Read(p)
	}
	fds := []unix.PollFd{{Fd: int32(in.fd), Events: unix.POLLIN}, {Fd: int32(in.wake[0].Fd()), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, -1)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("wait for standard input: %w", err)
		}
		if fds[1].Revents != 0 {
			return 0, io.EOF
		}
		n, err := unix.Read(in.fd, p)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case err != nil && !errors.Is(err, unix.EIO): // a terminal that hung up
			return 0, fmt.Errorf("read standard input: %w", err)
		case n <= 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// stop ends the Read that waits, and all that follow.
func (in *input) stop() {
	if in.fd >= 0 {
		in.wake[1].Close()
	}
}

// close frees what Read needs; no Read may run any more.
func (in *input) close() {
	if in.fd >= 0 {
		in.wake[0].Close()
	}
}
