package journal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// maxLine bounds a line of a file: a message of which every byte is escaped, and the rest of the entry.
const maxLine = 6*MaxMessage + 256

func encode(e Entry) ([]byte, error) {
	line, err := json.Marshal(e)
	return append(line, '\n'), err
}

// load finds what an earlier process left, and cuts off what it wrote in part. With mu.
func (j *Journal) load() error {
	if j.files != nil {
		return nil
	}
	listed, err := os.ReadDir(j.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	files := []*file{{name: headName}}
	for _, e := range listed {
		if first, err := strconv.ParseInt(strings.TrimPrefix(e.Name(), tailName), 10, 64); err == nil && e.Name() == fmt.Sprintf("%s%d", tailName, first) {
			files = append(files, &file{name: e.Name(), first: first})
		}
	}
	slices.SortFunc(files[1:], func(a, b *file) int { return int(min(1, max(-1, a.first-b.first))) })
	last := int64(0)
	for _, f := range files {
		if err := f.load(j.dir, last); err != nil {
			return err
		}
		last = max(last, f.last)
	}
	j.files, j.last = files, max(last, j.last)
	return nil
}

// load reads through the file, of which only entries with numbers above after count.
func (f *file) load(dir string, after int64) error {
	path := filepath.Join(dir, f.name)
	r, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	f.first, f.last, f.size = 0, 0, 0
	lines := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		e, ok := decode(line)
		if err != nil || !ok || e.Seq <= max(after, f.last) {
			break
		}
		if f.first == 0 {
			f.first = e.Seq
		}
		f.last = e.Seq
		f.size += int64(len(line))
	}
	if info, err := r.Stat(); err != nil || info.Size() == f.size {
		return err
	}
	return os.Truncate(path, f.size)
}

func decode(line []byte) (e Entry, ok bool) {
	line, whole := bytes.CutSuffix(line, []byte("\n"))
	if !whole || json.Unmarshal(line, &e) != nil || e.Seq < 1 {
		return Entry{}, false
	}
	return e, true
}

// append writes one line. The directory is made when it is not there, but none above it: those of a sandbox that is gone stay gone.
func (f *file) append(dir string, seq int64, line []byte) error {
	path := filepath.Join(dir, f.name)
	w, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.Mkdir(dir, 0o700); err == nil {
			w, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		}
	}
	if err != nil {
		return err
	}
	_, err = w.Write(line)
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	if f.first == 0 {
		f.first = seq
	}
	f.last = seq
	f.size += int64(len(line))
	return nil
}

// read answers at most limit entries numbered above after, from a place between two of them on, and the place after the last.
func (f *file) read(dir string, at, after int64, limit int) (entries []Entry, end int64, err error) {
	r, err := os.Open(filepath.Join(dir, f.name))
	if err != nil {
		return nil, at, err
	}
	defer r.Close()
	lines := bufio.NewReaderSize(io.NewSectionReader(r, at, f.size-at), maxLine)
	for end = at; len(entries) < limit; {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return entries, end, nil
		}
		if err != nil {
			return entries, end, err
		}
		end += int64(len(line))
		if e, ok := decode(line); ok && e.Seq > after {
			entries = append(entries, e)
		}
	}
	return entries, end, nil
}
