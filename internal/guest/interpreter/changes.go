package interpreter

import (
	"os"
	"path"
	"slices"
	"strings"

	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
)

// Bounds of looking for changed files.
const (
	maxEntries     = 20_000    // looked at, directories included
	maxDepth       = 64        // directories below a root
	maxChanges     = 1000      // told
	maxChangeBytes = 512 << 10 // of the paths told
)

// caches are directories whose content is no work of a program: what interpreters and tools keep to be quicker the next time.
var caches = []string{"__pycache__", ".cache", ".npm", ".bundle"}

// isCache also knows where the go command counts its own use.
func isCache(dir, name string) bool {
	return slices.Contains(caches, name) || name == "telemetry" && strings.HasSuffix(dir, "/.config/go")
}

// entry is one file as a scan found it. Directories, devices, FIFOs and sockets are no entries.
type entry struct {
	path  string
	size  int64
	mtime int64 // Unix ns
	inode uint64
}

// scan is what lay below some roots at a time, in the order of the walk.
type scan struct {
	entries   []entry
	stoppedAt string // the walk met a bound and looked at nothing from this path on; "": it saw all
}

// walker makes a scan. It opens every directory relative to the one above and follows no symbolic link, so that nothing that moves
// meanwhile leads it elsewhere.
type walker struct {
	scan
	left int
}

// look scans the files below roots, which are absolute. What is mounted below a root is not looked at, nor are caches.
func look(roots []string) scan { return lookAtMost(roots, maxEntries) }

func lookAtMost(roots []string, entries int) scan {
	w := walker{left: entries}
	for _, root := range outermost(roots) {
		fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil {
			unix.Close(fd)
			continue
		}
		if !w.directory(fd, root, uint64(st.Dev), 0) {
			break
		}
	}
	return w.scan
}

// outermost drops roots that lie below another, and sorts the rest as the walk needs it.
func outermost(roots []string) []string {
	roots = slices.Clone(roots)
	slices.SortFunc(roots, comparePaths)
	var list []string
	for _, root := range roots {
		if n := len(list); n == 0 || root != list[n-1] && !strings.HasPrefix(root, list[n-1]+"/") {
			list = append(list, root)
		}
	}
	return list
}

// directory walks fd, which it closes, and reports whether the walk goes on.
func (w *walker) directory(fd int, dir string, device uint64, depth int) bool {
	file := os.NewFile(uintptr(fd), dir)
	defer file.Close()
	if depth > maxDepth {
		w.stoppedAt = dir
		return false
	}
	names, err := file.Readdirnames(w.left + 1)
	if err != nil || len(names) == 0 {
		return true
	}
	if len(names) > w.left { // an order of a part of them would mean nothing
		w.stoppedAt = dir
		return false
	}
	slices.Sort(names)
	for _, name := range names {
		file := path.Join(dir, name)
		if w.left == 0 {
			w.stoppedAt = file
			return false
		}
		w.left--
		var st unix.Stat_t
		if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG, unix.S_IFLNK:
			w.entries = append(w.entries, entry{path: file, size: st.Size, mtime: st.Mtim.Nano(), inode: st.Ino})
		case unix.S_IFDIR:
			if uint64(st.Dev) != device || isCache(dir, name) {
				continue
			}
			below, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			if err != nil {
				continue
			}
			if !w.directory(below, file, device, depth+1) {
				return false
			}
		}
	}
	return true
}

// comparePaths is the order of a walk that visits the names of each directory in their order.
func comparePaths(a, b string) int {
	for i := range min(len(a), len(b)) {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		if x == '/' {
			x = 0
		}
		if y == '/' {
			y = 0
		}
		return int(x) - int(y)
	}
	return len(a) - len(b)
}

// changes compares two scans of the same roots. truncated says that more may have changed than is returned.
func changes(before, after scan) (list []*guestv1.CodeReport_FileChange, truncated bool) {
	bytes := 0
	note := func(e entry, op string) {
		if len(list) == maxChanges || bytes+len(e.path) > maxChangeBytes {
			truncated = true
			return
		}
		bytes += len(e.path)
		list = append(list, &guestv1.CodeReport_FileChange{Path: strings.ToValidUTF8(e.path, "\uFFFD"), Size: e.size, Op: op})
	}
	seen := func(e entry) bool { // by both
		for _, s := range []string{before.stoppedAt, after.stoppedAt} {
			if s != "" && comparePaths(e.path, s) >= 0 {
				return false
			}
		}
		return true
	}
	a, b := before.entries, after.entries
	for len(a) > 0 || len(b) > 0 {
		order := 1
		if len(b) == 0 {
			order = -1
		} else if len(a) > 0 {
			order = comparePaths(a[0].path, b[0].path)
		}
		switch {
		case order < 0:
			if seen(a[0]) {
				gone := a[0]
				gone.size = 0
				note(gone, "remove")
			}
			a = a[1:]
		case order > 0:
			if seen(b[0]) {
				note(b[0], "create")
			}
			b = b[1:]
		default:
			if a[0] != b[0] && seen(b[0]) {
				note(b[0], "write")
			}
			a, b = a[1:], b[1:]
		}
	}
	return list, truncated || before.stoppedAt != "" || after.stoppedAt != ""
}
