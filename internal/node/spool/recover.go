package spool

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cayhq/cay"
)

func (s *Spool) processDir(id cay.ID) string { return filepath.Join(s.dir, string(id)) }

// recover rebuilds the table from the files. A process directory without a readable record is kept as a process that is known by
// name only: its start may have been cut short after output came.
func (s *Spool) recover() error {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		id, ok := cay.ParseID(cay.PrefixProcess, e.Name())
		if !ok || !e.IsDir() {
			continue
		}
		l := s.recoverLog(id)
		s.logs[id] = l
		s.used += l.disk()
		if l.meta.Exit != nil {
			s.endedQ = append(s.endedQ, l)
		}
	}
	slices.SortFunc(s.endedQ, func(a, b *Log) int { return a.meta.EndedAt.Compare(b.meta.EndedAt) })
	s.full = slices.Clone(s.endedQ)
	return nil
}

func (s *Spool) recoverLog(id cay.ID) *Log {
	l := &Log{spool: s, dir: s.processDir(id), madeDir: true}
	p, err := readProcess(l.dir)
	if err != nil {
		p = Process{MaxOutput: cay.DefaultMaxOutput}
	}
	p.ID = id
	l.meta = p
	for _, stream := range []cay.Stream{cay.Stdout, cay.Stderr} {
		l.streams[stream-1] = recoverStream(l.dir, stream)
		if st := &l.streams[stream-1]; len(st.segs) > 0 {
			last := st.segs[len(st.segs)-1]
			l.produced = max(l.produced, last.end)
			st.size = last.streamStart + last.data
		}
	}
	l.recoverReport()
	// Bytes that were not kept are known from the record alone.
	out, errs := &l.streams[0], &l.streams[1]
	out.size, errs.size = max(out.size, p.StdoutSize), max(errs.size, p.StderrSize)
	l.produced = max(l.produced, p.StdoutSize+p.StderrSize)
	if missing := l.produced - out.size - errs.size; missing > 0 {
		out.size += missing
	}
	l.produced = out.size + errs.size
	return l
}

// recoverStream scans a stream's segments. They have to follow one another; from the first that does not, all are dropped.
func recoverStream(dir string, stream cay.Stream) streamLog {
	var st streamLog
	names, _ := filepath.Glob(filepath.Join(dir, strconv.Itoa(int(stream))+".*"))
	type numbered struct {
		seq  int
		path string
	}
	var files []numbered
	for _, name := range names {
		_, num, _ := strings.Cut(filepath.Base(name), ".")
		if seq, err := strconv.Atoi(num); err == nil && seq >= 0 && seq < 1<<30 {
			files = append(files, numbered{seq, name})
		}
	}
	slices.SortFunc(files, func(a, b numbered) int { return a.seq - b.seq })
	broken := false
	for _, file := range files {
		st.nextSeq = file.seq + 1
		seg := recoverSegment(file.path, stream)
		if seg != nil && len(st.segs) > 0 {
			last := st.segs[len(st.segs)-1]
			if seg.start < last.end || seg.streamStart < last.streamStart+last.data {
				seg = nil
				broken = true
			}
		}
		if seg == nil || broken {
			os.Remove(file.path)
			continue
		}
		seg.seq, seg.path = file.seq, file.path
		st.segs = append(st.segs, seg)
		st.disk += seg.fileSize
	}
	return st
}

func recoverSegment(path string, stream cay.Stream) *segment {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil
	}
	seg, err := scan(f, stream)
	if err != nil {
		return nil
	}
	if err := f.Truncate(seg.fileSize); err != nil {
		return nil
	}
	return seg
}
