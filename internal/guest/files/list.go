package files

import (
	"container/heap"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

const (
	maxPage      = 1000
	maxPageBytes = 56 << 10 // of an encoded page, which with its cursor must fit into one frame
	maxDepth     = 32
)

// List describes what is in a directory and, up to depth, below it: parents before what they hold, names in the order of their
// bytes. A page ends at the limit or where a frame is full; its cursor continues behind the last item, also when that is gone
// meanwhile. Memory is bounded by the page, not by the directory. Symlinks below the path are not followed.
func (f *Files) List(req *guestv1.List) (*guestv1.FileList, error) {
	page := &lister{files: f, limit: int(min(max(req.Limit, 1), maxPage)), list: &guestv1.FileList{}}
	if req.Limit == 0 {
		page.limit = maxPage
	}
	after, err := decodeCursor(req.Cursor)
	if err != nil {
		return nil, err
	}
	depth := int(min(max(req.Depth, 1), maxDepth))
	err = f.as(req.User, "list", &req.Path, func(user.Account) error {
		dir := strings.TrimRight(req.Path, "/")
		var st unix.Stat_t
		if err := unix.Stat(dir+"/", &st); err != nil {
			return err
		}
		return page.walk(dir, nil, after, depth)
	})
	return page.list, err
}

// A cursor is the names below the listed directory that lead to the last item, NUL between them: no name holds one.
func encodeCursor(names []string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strings.Join(names, "\x00")))
}

func decodeCursor(s string) ([]string, error) {
	if s == "" {
		return nil, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	names := strings.Split(string(b), "\x00")
	bad := func(name string) bool {
		return name == "" || name == "." || name == ".." || strings.Contains(name, "/")
	}
	if err != nil || len(names) > maxDepth || slices.ContainsFunc(names, bad) {
		return nil, cay.Errorf(cay.Unprocessable, "the cursor is not one that a list gave").On("cursor")
	}
	return names, nil
}

type lister struct {
	files *Files
	limit int
	bytes int
	list  *guestv1.FileList
	last  []string
	full  bool
}

// walk lists what lies behind after in dir, whose names below the start are in above.
func (l *lister) walk(dir string, above, after []string, depth int) error {
	from := ""
	if len(after) > 0 {
		from = after[0]
		// The item itself was listed; what it holds may not have been.
		if child := dir + "/" + from; depth > 1 && isDirectory(child) {
			_ = l.walk(child, append(slices.Clone(above), from), after[1:], depth-1) // gone or closed meanwhile: go on behind it
		}
	}
	for !l.full {
		names, err := smallest(dir, from, l.limit-len(l.list.Items)+1)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return nil
		}
		for _, name := range names {
			if err := l.item(dir, above, name, depth); err != nil {
				return err
			}
			if l.full {
				return nil
			}
			from = name
		}
	}
	return nil
}

// item adds one entry and what it holds.
func (l *lister) item(dir string, above []string, name string, depth int) error {
	file := dir + "/" + name
	var st unix.Stat_t
	if unix.Lstat(file, &st) != nil {
		return nil // gone meanwhile
	}
	info := l.files.describe(file, &st)
	size := proto.Size(info) + 4
	if len(l.list.Items) == l.limit || l.bytes+size > maxPageBytes && len(l.list.Items) > 0 {
		l.full = true
		l.list.NextCursor = encodeCursor(l.last)
		return nil
	}
	l.bytes += size
	l.list.Items = append(l.list.Items, info)
	l.last = append(slices.Clone(above), name)
	if depth > 1 && info.Type == "directory" {
		if err := l.walk(file, l.last, nil, depth-1); err != nil {
			return nil // a directory that may not be read is an item without content
		}
	}
	return nil
}

func isDirectory(file string) bool {
	var st unix.Stat_t
	return unix.Lstat(file, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// smallest is smallestAt of a directory's path.
func smallest(dir, from string, n int) ([]string, error) {
	fd, err := openAt(unix.AT_FDCWD, dir+"/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return smallestAt(fd, from, n)
}

// smallestAt returns the n smallest names in a directory that are larger than from, sorted. It holds no more than n names and one
// batch.
func smallestAt(dir int, from string, n int) ([]string, error) {
	if _, err := unix.Seek(dir, 0, unix.SEEK_SET); err != nil {
		return nil, err
	}
	var kept names
	err := eachName(dir, func(name string) error {
		switch {
		case name <= from:
		case len(kept) < n:
			heap.Push(&kept, name)
		case name < kept[0]:
			kept[0] = name
			heap.Fix(&kept, 0)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(kept)
	return kept, nil
}

// names is a heap with the largest on top.
type names []string

func (h names) Len() int           { return len(h) }
func (h names) Less(i, j int) bool { return h[i] > h[j] }
func (h names) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *names) Push(x any)        { *h = append(*h, x.(string)) }
func (h *names) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}
