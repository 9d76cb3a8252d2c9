package files

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// What one request may cost. A search that needs more ends early, says so, and continues by its cursor.
const (
	searchTime    = 5 * time.Second
	searchEntries = 200_000
	searchBytes   = 512 << 20 // read of files
)

const (
	maxSearchPage = 1000
	maxLines      = 32       // told of one file
	maxLineText   = 512      // bytes told of a line
	maxLine       = 16 << 10 // bytes of a line that are looked at
	binaryProbe   = 8 << 10  // a NUL among so many first bytes makes a file binary
	namesAtOnce   = 4096     // of a directory, that are held
)

// errEnough ends a walk whose page is full or whose work is used up.
var errEnough = errors.New("enough")

// Search walks below a directory in the order of the names' bytes, parents before what they hold, and finds what the request asks
// for. It follows no symlink. Directories that may not be read, and what vanishes meanwhile, are left out.
func (f *Files) Search(req *guestv1.Search) (*guestv1.SearchResult, error) {
	pattern, err := compileGlob(req.Pattern)
	if err != nil {
		return nil, err
	}
	s := &searcher{files: f, pattern: pattern, limit: int(min(max(req.Limit, 1), maxSearchPage)), deadline: time.Now().Add(searchTime), result: &guestv1.SearchResult{}}
	if req.Limit == 0 {
		s.limit = 100
	}
	if req.Contains != "" {
		if len(req.Contains) > maxPattern {
			return nil, errPattern("contains", errors.New("it is too long"))
		}
		if s.contains, err = compileBounded(req.Contains); err != nil {
			return nil, errPattern("contains", err)
		}
		s.lines = bufio.NewReaderSize(nil, maxLine)
	}
	after, err := decodeSearchCursor(req.Cursor)
	if err != nil {
		return nil, err
	}
	err = f.as(req.User, "search", &req.Path, func(user.Account) error {
		root, err := openAt(unix.AT_FDCWD, req.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(root)
		s.root = strings.TrimRight(req.Path, "/") + "/"
		if err := s.walk(root, "", after, 0); err != nil && err != errEnough {
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.result, nil
}

// A cursor of a search is the path below its start of the last entry that was looked at.
func decodeSearchCursor(s string) ([]string, error) {
	if s == "" {
		return nil, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	names := strings.Split(string(b), "/")
	if err != nil || len(b) > maxPath || slices.ContainsFunc(names, func(name string) bool {
		return name == "" || name == "." || name == ".." || strings.Contains(name, "\x00")
	}) {
		return nil, cay.Errorf(cay.Unprocessable, "the cursor is not one that a search gave").On("cursor")
	}
	return names, nil
}

type searcher struct {
	files    *Files
	root     string // with a slash at the end
	pattern  *glob
	contains *regexp.Regexp
	limit    int
	deadline time.Time
	entries  int
	read     int64
	lines    *bufio.Reader
	bytes    int
	last     string // the entry looked at last, below the root
	result   *guestv1.SearchResult
}

// walk looks at what lies behind after in dir, which is called prefix below the root.
func (s *searcher) walk(dir int, prefix string, after []string, level int) error {
	if level > maxLevels || len(prefix) > maxPath {
		return nil
	}
	from := ""
	if len(after) > 0 {
		from = after[0]
		// The entry itself was looked at; what it holds may not have been.
		if fd, err := openDirectoryAt(dir, from); err == nil {
			err = s.walk(fd, prefix+from+"/", after[1:], level+1)
			unix.Close(fd)
			if err != nil {
				return err
			}
		}
	}
	for {
		names, err := smallestAt(dir, from, namesAtOnce)
		if err != nil || len(names) == 0 {
			return nil //nolint:nilerr // a directory that may not be read is an entry without content
		}
		for _, name := range names {
			if err := s.entry(dir, prefix, name, level); err != nil {
				return err
			}
		}
		from = names[len(names)-1]
	}
}

func (s *searcher) entry(dir int, prefix, name string, level int) error {
	if unfinished(name) {
		return nil
	}
	rel := prefix + name
	st, err := statAt(dir, name)
	if err != nil {
		return nil //nolint:nilerr // gone meanwhile
	}
	if s.entries++; s.entries > searchEntries || s.read > searchBytes || time.Now().After(s.deadline) {
		s.result.Truncated = true
		return s.end()
	}
	if s.pattern.match(rel, name) {
		if err := s.match(dir, name, rel, &st); err != nil {
			return err
		}
	}
	s.last = rel
	if !isDir(&st) {
		return nil
	}
	fd, err := openDirectoryAt(dir, name)
	if err != nil {
		return nil //nolint:nilerr // it may not be read, or is gone
	}
	defer unix.Close(fd)
	return s.walk(fd, rel+"/", nil, level+1)
}

// end gives out the cursor behind which the next page begins.
func (s *searcher) end() error {
	s.result.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(s.last))
	return errEnough
}

// match adds an entry whose path matches, where its content does as well.
func (s *searcher) match(dir int, name, rel string, st *unix.Stat_t) error {
	found := &guestv1.SearchResult_Match{}
	if s.contains != nil {
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return nil
		}
		if found.Lines = s.grep(dir, name); len(found.Lines) == 0 {
			return nil
		}
	}
	found.File = s.files.describe(s.root+rel, st)
	size := proto.Size(found) + 4
	if len(s.result.Items) == s.limit || len(s.result.Items) > 0 && s.bytes+size > maxPageBytes-2*len(s.last) {
		return s.end()
	}
	s.bytes += size
	s.result.Items = append(s.result.Items, found)
	return nil
}

// grep returns the first lines of a file that match; none of a binary one.
func (s *searcher) grep(dir int, name string) []*guestv1.SearchResult_Line {
	fd, err := openAt(dir, name, openContent, 0)
	if err != nil {
		return nil
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	s.lines.Reset(file)
	if probe, _ := s.lines.Peek(binaryProbe); bytes.IndexByte(probe, 0) >= 0 {
		return nil
	}
	var found []*guestv1.SearchResult_Line
	for number := int64(1); len(found) < maxLines; number++ {
		line, err := s.lines.ReadSlice('\n')
		s.read += int64(len(line))
		if len(line) == 0 {
			break
		}
		if line = bytes.TrimRight(line, "\r\n"); s.contains.Match(line) {
			found = append(found, &guestv1.SearchResult_Line{Number: number, Text: text(string(line[:min(len(line), maxLineText)]))})
		}
		for err == bufio.ErrBufferFull { // the rest of a long line
			var more []byte
			more, err = s.lines.ReadSlice('\n')
			s.read += int64(len(more))
		}
		if err == io.EOF || err != nil || s.read > searchBytes || time.Now().After(s.deadline) {
			break
		}
	}
	return found
}
