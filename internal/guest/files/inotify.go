package files

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"time"

	"github.com/cayhq/cay"
	"golang.org/x/sys/unix"
)

// inotifyBuffer is how much of the kernel's events is read at a time, in bytes.
const inotifyBuffer = 64 << 10

// read follows the kernel's events until the root is gone, which is nil, or the descriptor is closed.
func (w *watcher) read() error {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	buf := make([]byte, inotifyBuffer)
	for {
		deadline := time.Time{}
		if w.moving != nil {
			deadline = time.Now().Add(moveWait)
		}
		if err := w.file.SetReadDeadline(deadline); err != nil {
			return err
		}
		if w.stopped.Load() {
			return nil
		}
		n := 0
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			n, failed = unix.Read(int(fd), buf)
			if failed == unix.EINTR {
				n, failed = 0, nil
			}
			if failed == unix.EAGAIN {
				clear(w.revealed) // the kernel has told what it had to tell of them
				return false
			}
			return true
		})
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			w.settleMove()
			continue
		case err != nil:
			return err
		case failed != nil:
			return failed
		}
		gone := false
		handle := func() error {
			gone = w.events(buf[:n])
			return nil
		}
		if w.recursive && bringsDirectory(buf[:n]) { // it is looked at as the user
			err = w.account.As(handle)
		} else {
			err = handle()
		}
		if gone || err != nil {
			return err
		}
	}
}

// stop ends read soon.
func (w *watcher) stop() {
	w.stopped.Store(true)
	_ = w.file.SetReadDeadline(time.Unix(1, 0))
}

// bringsDirectory reports whether a buffer holds an event after which there is a directory to look at.
func bringsDirectory(buf []byte) bool {
	for len(buf) >= unix.SizeofInotifyEvent {
		mask, length := binary.NativeEndian.Uint32(buf[4:]), int(binary.NativeEndian.Uint32(buf[12:]))
		if mask&unix.IN_Q_OVERFLOW != 0 || mask&unix.IN_ISDIR != 0 && mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 {
			return true
		}
		buf = buf[min(len(buf), unix.SizeofInotifyEvent+length):]
	}
	return false
}

// events handles a buffer of the kernel's. gone: the root is.
func (w *watcher) events(buf []byte) (gone bool) {
	for len(buf) >= unix.SizeofInotifyEvent {
		wd := int(int32(binary.NativeEndian.Uint32(buf)))
		mask, cookie, length := binary.NativeEndian.Uint32(buf[4:]), binary.NativeEndian.Uint32(buf[8:]), int(binary.NativeEndian.Uint32(buf[12:]))
		buf = buf[unix.SizeofInotifyEvent:]
		if length > len(buf) {
			return false
		}
		name, _, _ := bytes.Cut(buf[:length], []byte{0})
		buf = buf[length:]
		if w.event(wd, mask, cookie, string(name)) {
			w.settleMove()
			w.emit("remove", w.rootPath(), "")
			return true
		}
	}
	return false
}

func (w *watcher) rootPath() string {
	if w.shown == "" {
		return "/"
	}
	return cay.WirePath(w.shown)
}

func (w *watcher) event(wd int, mask, cookie uint32, name string) (gone bool) {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		w.queue.overflow()
		w.resync()
		return false
	}
	n := w.nodes[wd]
	if n == nil {
		return false
	}
	if w.moving != nil && (mask&unix.IN_MOVED_TO == 0 || w.moving.cookie != cookie) {
		w.settleMove()
	}
	switch {
	case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT) != 0:
		return n == w.top
	case mask&unix.IN_IGNORED != 0:
		w.forget(n)
		return n == w.top
	case name == "":
		if n == w.top && mask&unix.IN_ATTRIB != 0 && w.only == "" {
			w.emit("chmod", w.rootPath(), "")
		}
		return false
	}
	w.entry(n, mask, cookie, name)
	return false
}

// entry handles what happened to an entry of a watched directory.
func (w *watcher) entry(n *watched, mask, cookie uint32, name string) {
	hidden := unfinished(name)
	dir := mask&unix.IN_ISDIR != 0
	switch {
	case mask&unix.IN_MOVED_FROM != 0:
		w.moving = &move{cookie: cookie, from: n, name: name, hidden: hidden, dir: dir}
	case mask&unix.IN_MOVED_TO != 0:
		w.arrived(n, name, dir, hidden)
	case hidden || w.only != "" && w.only != name:
	case mask&unix.IN_CREATE != 0:
		w.appeared(n, name, dir)
	case mask&unix.IN_DELETE != 0:
		w.emit("remove", w.pathOf(n, name), "")
	case mask&unix.IN_MODIFY != 0:
		w.emit("write", w.pathOf(n, name), "")
	case mask&unix.IN_ATTRIB != 0:
		w.emit("chmod", w.pathOf(n, name), "")
	}
}

func (w *watcher) appeared(n *watched, name string, dir bool) {
	key := revealedName{n.wd, name}
	if _, told := w.revealed[key]; told {
		delete(w.revealed, key)
	} else {
		w.emit("create", w.pathOf(n, name), "")
	}
	if dir {
		w.look(n, name)
	}
}

// arrived handles the second half of a rename, or one from outside of what is watched.
func (w *watcher) arrived(n *watched, name string, dir, hidden bool) {
	m := w.moving
	w.moving = nil
	switch {
	case hidden:
		return
	case w.only != "" && w.only != name && (m == nil || m.name != w.only):
		return
	case m == nil || m.hidden:
		w.appeared(n, name, dir)
		return
	case w.only == name: // what was watched is another file now
		w.appeared(n, name, dir)
		return
	}
	w.emit("rename", w.pathOf(m.from, m.name), w.pathOf(n, name))
	if !dir {
		return
	}
	if child := m.from.children[m.name]; child != nil {
		w.detach(child)
		child.parent, child.name = n, name
		n.children[name] = child
	}
	w.look(n, name)
}

// settleMove tells that what was moved came to no place that is watched.
func (w *watcher) settleMove() {
	m := w.moving
	w.moving = nil
	if m == nil || m.hidden || w.only != "" && w.only != m.name {
		return
	}
	w.emit("remove", w.pathOf(m.from, m.name), "")
	if child := m.from.children[m.name]; child != nil {
		w.unwatch(child)
	}
}

// resync watches what the kernel could not tell about. What was missed is said to be.
func (w *watcher) resync() {
	if dir, err := w.open(nil); err == nil {
		_ = w.reveal(nil, "", dir, false, 0)
		unix.Close(dir)
	}
}
