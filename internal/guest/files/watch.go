package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
)

const (
	// maxWatched bounds the directories that one watch can see.
	maxWatched = 64 << 10
	// maxRevealed bounds the entries of new directories that are remembered until the kernel has told them too.
	maxRevealed = 64 << 10
	// moveWait is how long the first half of a rename waits for the second: the kernel tells both at once.
	moveWait = 50 * time.Millisecond
)

const watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// Watch tells what changes in a directory, recursively below it too, or to one file, until the directory is gone or ctx ends. It calls
// ready once it sees every change, and then send with some events at a time. Events wait for send within bounds; what does not
// fit is replaced by one of type overflow. The content of a directory that appears is told as created.
func (f *Files) Watch(ctx context.Context, req *guestv1.Watch, ready func() error, send func([]*guestv1.WatchEvent) error) error {
	w := &watcher{nodes: map[int]*watched{}, revealed: map[revealedName]struct{}{}, recursive: req.Recursive, queue: newEventQueue()}
	err := f.as(req.User, "watch", &req.Path, func(account user.Account) error {
		w.account = account
		return w.arm(req.Path)
	})
	var reading sync.WaitGroup
	defer func() {
		if w.file != nil {
			w.stop()
			reading.Wait()
			w.file.Close()
		}
	}()
	if err != nil {
		return err
	}
	if err := ready(); err != nil {
		return err
	}
	reading.Go(func() { w.queue.close(w.read()) })
	defer context.AfterFunc(ctx, func() { w.queue.close(context.Cause(ctx)) })()
	for {
		events, err := w.queue.take()
		if err != nil || len(events) == 0 {
			return err
		}
		if err := send(events); err != nil {
			return err
		}
	}
}

// watched is a directory that the kernel tells about.
type watched struct {
	parent   *watched // nil of the root
	name     string
	wd       int
	children map[string]*watched
}

func (n *watched) names() []string {
	if n.parent == nil {
		return nil
	}
	return append(n.parent.names(), n.name)
}

// revealedName is an entry of a directory that was found by looking.
type revealedName struct {
	wd   int
	name string
}

// move is the first half of a rename.
type move struct {
	cookie uint32
	from   *watched
	name   string
	hidden bool // of a write under way
	dir    bool
}

// watcher keeps a model of the tree that follows the kernel's events in their order, while the tree may be ahead of them. So a path
// of the model is only where to look; which directory is there, its watch descriptor says.
type watcher struct {
	account   user.Account
	fd        int      // of inotify
	file      *os.File // the same, to wait for it
	stopped   atomic.Bool
	root      string // the directory
	identity  inode  // of root
	shown     string // what paths begin with
	only      string // the one entry that counts; "" for all
	recursive bool

	top      *watched
	nodes    map[int]*watched
	revealed map[revealedName]struct{}
	moving   *move
	queue    *eventQueue
}

var (
	errRootGone     = errors.New("the directory is gone")
	errManyWatched  = fmt.Errorf("there are more than %d directories", maxWatched)
	errNotInotified = errors.New("the kernel takes no further watch")
)

// arm begins to watch what is there. It runs as the user.
func (w *watcher) arm(file string) error {
	w.root, w.shown = file, strings.TrimRight(file, "/")
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return err
	}
	if !isDir(&st) {
		target, err := follow(file)
		if err != nil {
			return err
		}
		w.root, w.only, w.recursive = path.Dir(target), path.Base(target), false
		w.shown = strings.TrimRight(w.root, "/")
		if err := unix.Stat(w.root, &st); err != nil {
			return err
		}
	}
	w.identity = inode{uint64(st.Dev), st.Ino}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return err
	}
	w.fd, w.file = fd, os.NewFile(uintptr(fd), "inotify")
	dir, err := w.open(nil)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return w.reveal(nil, "", dir, false, 0)
}

// open opens the directory that the names lead to, if the root is still the one that is watched.
func (w *watcher) open(names []string) (int, error) {
	at, err := openAt(unix.AT_FDCWD, w.root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil || (inode{uint64(st.Dev), st.Ino}) != w.identity {
		unix.Close(at)
		return 0, errRootGone
	}
	for _, name := range names {
		fd, err := openDirectoryAt(at, name)
		unix.Close(at)
		if err != nil {
			return 0, err
		}
		at = fd
	}
	return at, nil
}

// attach watches the open directory as the child name of parent. known: it was watched already, there or elsewhere.
func (w *watcher) attach(parent *watched, name string, dir int) (n *watched, known bool, err error) {
	wd, err := unix.InotifyAddWatch(w.fd, fmt.Sprintf("/proc/self/fd/%d", dir), watchMask)
	if err != nil {
		return nil, false, errNotInotified
	}
	if n, known = w.nodes[wd]; known {
		if n.parent != nil && (n.parent != parent || n.name != name) {
			w.detach(n)
			n.parent, n.name = parent, name
			parent.children[name] = n
		}
		return n, true, nil
	}
	if len(w.nodes) >= maxWatched {
		_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
		return nil, false, errManyWatched
	}
	n = &watched{parent: parent, name: name, wd: wd, children: map[string]*watched{}}
	w.nodes[wd] = n
	if parent == nil {
		w.top = n
	} else {
		parent.children[name] = n
	}
	return n, false, nil
}

func (w *watcher) detach(n *watched) {
	if n.parent != nil && n.parent.children[n.name] == n {
		delete(n.parent.children, n.name)
	}
}

// reveal watches an open directory and what is below it. What a directory holds that was not watched before is told as created, since
// the kernel told nobody. Where the directory was known, only those below that are not are new.
func (w *watcher) reveal(parent *watched, name string, dir int, tell bool, level int) error {
	n, known, err := w.attach(parent, name, dir)
	if err != nil || !w.recursive && known || level > maxLevels {
		return err
	}
	if !w.recursive && !tell {
		return nil
	}
	return eachName(dir, func(child string) error {
		if unfinished(child) {
			return nil
		}
		st, err := statAt(dir, child)
		if err != nil {
			return nil //nolint:nilerr // gone meanwhile: the kernel says so
		}
		if tell && !known {
			w.emit("create", w.pathOf(n, child), "")
			if len(w.revealed) < maxRevealed {
				w.revealed[revealedName{n.wd, child}] = struct{}{}
			}
		}
		if !isDir(&st) {
			return nil
		}
		fd, err := openDirectoryAt(dir, child)
		if err != nil {
			return nil //nolint:nilerr // gone meanwhile, or closed to the user: then there is nothing to see
		}
		defer unix.Close(fd)
		return w.reveal(n, child, fd, tell, level+1)
	})
}

// look reveals the directory name of n, wherever it is by now.
func (w *watcher) look(n *watched, name string) {
	if !w.recursive {
		return
	}
	names := append(n.names(), name)
	dir, err := w.open(names)
	if err != nil {
		return // it was moved or removed meanwhile: that is still to be told
	}
	defer unix.Close(dir)
	if err := w.reveal(n, name, dir, true, len(names)); err != nil {
		w.queue.overflow()
	}
}

// forget drops a directory that the kernel watches no longer.
func (w *watcher) forget(n *watched) {
	w.detach(n)
	delete(w.nodes, n.wd)
}

// unwatch drops a tree that was moved away.
func (w *watcher) unwatch(n *watched) {
	for _, child := range n.children {
		w.unwatch(child)
	}
	_, _ = unix.InotifyRmWatch(w.fd, uint32(n.wd))
	w.forget(n)
}

func (w *watcher) pathOf(n *watched, name string) string {
	return cay.WirePath(w.shown + "/" + strings.Join(append(n.names(), name), "/"))
}

func (w *watcher) emit(kind, file, to string) {
	w.queue.put(&guestv1.WatchEvent{Type: kind, Path: file, To: to})
}
