// Package spool keeps the output of a sandbox's processes on the host: per process and stream a head and a tail, by offset, in files
// that a restarted node finds again. It serves any number of readers, each at its own pace, and tells them what was not kept. It
// knows nothing of agents, acknowledgements or back-pressure; that is the router's business.
//
// Nothing is synced: after a power failure there is no sandbox left whose output could matter.
package spool

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

// Options bound a sandbox's spool. Zero values take the defaults.
type Options struct {
	Quota    int64         // bytes on disk of all processes; default 1 GiB
	Keep     time.Duration // how long an ended process is kept; default 15 minutes
	KeepLast int           // how many ended ones are kept for longer; default 100
	MaxEnded int           // how many ended ones are kept at most; default 10,000
	MinTail  int64         // bytes that each stream's tail keeps on disk for readers, also where max_output is less; default none
	Now      func() time.Time
}

func (o Options) withDefaults() Options {
	if o.Quota <= 0 {
		o.Quota = 1 << 30
	}
	if o.Keep <= 0 {
		o.Keep = 15 * time.Minute
	}
	if o.KeepLast <= 0 {
		o.KeepLast = 100
	}
	if o.MaxEnded <= 0 {
		o.MaxEnded = 10_000
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Spool holds the output of one sandbox's processes. All methods are safe for concurrent use.
type Spool struct {
	dir  string
	opts Options

	mu     sync.Mutex // taken before any Log's lock
	logs   map[cay.ID]*Log
	endedQ []*Log // in the order they ended
	full   []*Log // the later part of endedQ whose output is still there
	used   int64  // bytes of segment files
}

// Open finds what an earlier node left in dir, which need not exist. Damaged files are dropped; only a directory that cannot be read
// is an error.
func Open(dir string, opts Options) (*Spool, error) {
	s := &Spool{dir: dir, opts: opts.withDefaults(), logs: map[cay.ID]*Log{}}
	if err := s.recover(); err != nil {
		return nil, fmt.Errorf("open spool %s: %w", dir, err)
	}
	return s, nil
}

func (s *Spool) now() time.Time { return s.opts.Now() }

// Create begins the log of a process. Nothing is written yet. p.ID must be a well-formed process id that is not in use.
func (s *Spool) Create(p Process) (*Log, error) {
	if _, ok := cay.ParseID(cay.PrefixProcess, string(p.ID)); !ok {
		return nil, fmt.Errorf("spool: process id %q is malformed", p.ID)
	}
	p.MaxOutput, p.Command = boundMaxOutput(p.MaxOutput), boundCommand(p.Command)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.logs[p.ID]; ok {
		return nil, fmt.Errorf("spool: process %s exists", p.ID)
	}
	l := &Log{spool: s, dir: s.processDir(p.ID), meta: p}
	s.logs[p.ID] = l
	return l, nil
}

func boundMaxOutput(n int64) int64 {
	if n <= 0 {
		return cay.DefaultMaxOutput
	}
	return min(n, cay.MaxMaxOutput)
}

// Get finds the log of a process.
func (s *Spool) Get(id cay.ID) (*Log, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.logs[id]
	return l, ok
}

// Logs lists all logs, oldest process first.
func (s *Spool) Logs() []*Log {
	s.mu.Lock()
	all := make([]*Log, 0, len(s.logs))
	for _, l := range s.logs {
		all = append(all, l)
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *Log) int {
		if a.dir < b.dir {
			return -1
		}
		return 1
	})
	return all
}

// Discard forgets a process that never started.
func (s *Spool) Discard(l *Log) {
	s.mu.Lock()
	id := l.Process().ID
	if s.logs[id] == l {
		delete(s.logs, id)
	}
	s.mu.Unlock()
	freed := l.remove()
	s.mu.Lock()
	s.used -= freed
	s.mu.Unlock()
}

// Used is the bytes of output on disk.
func (s *Spool) Used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// grow accounts for n more bytes written by l and makes room if that is too much: first the output of the processes that ended
// longest ago goes, then what l itself wrote least recently.
func (s *Spool) grow(n int64, l *Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used += n
	for s.used > s.opts.Quota && len(s.full) > 0 {
		s.used -= s.full[0].shed(true)
		s.full = s.full[1:]
	}
	for s.used > s.opts.Quota {
		freed := l.shed(false)
		if freed == 0 {
			return
		}
		s.used -= freed
	}
}

func (s *Spool) ended(l *Log) {
	s.mu.Lock()
	s.endedQ = append(s.endedQ, l)
	s.full = append(s.full, l)
	s.mu.Unlock()
	s.Sweep()
}

// Sweep removes the ended processes that need not be kept any longer and names them.
func (s *Spool) Sweep() []cay.ID {
	var old []*Log
	var gone []cay.ID
	limit := s.now().Add(-s.opts.Keep)
	s.mu.Lock()
	for len(s.endedQ) > s.opts.KeepLast {
		p := s.endedQ[0].Process()
		if len(s.endedQ) <= s.opts.MaxEnded && p.EndedAt.After(limit) {
			break
		}
		old = append(old, s.endedQ[0])
		gone = append(gone, p.ID)
		if s.logs[p.ID] == s.endedQ[0] {
			delete(s.logs, p.ID)
		}
		if len(s.full) > 0 && s.full[0] == s.endedQ[0] {
			s.full = s.full[1:]
		}
		s.endedQ[0] = nil
		s.endedQ = s.endedQ[1:]
	}
	s.mu.Unlock()
	var freed int64
	for _, l := range old {
		freed += l.remove()
	}
	if freed > 0 {
		s.mu.Lock()
		s.used -= freed
		s.mu.Unlock()
	}
	return gone
}

// Close closes all files. What is on disk stays.
func (s *Spool) Close() {
	for _, l := range s.Logs() {
		l.mu.Lock()
		l.closeFiles()
		l.wake()
		l.mu.Unlock()
	}
}

// Remove deletes everything. No log may be appended to afterwards.
func (s *Spool) Remove() error {
	for _, l := range s.Logs() {
		l.remove()
	}
	return os.RemoveAll(s.dir)
}
