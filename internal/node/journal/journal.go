// Package journal keeps what boot, agent and platform said about a sandbox: entries in files of the sandbox's directory, numbered,
// bounded, found again by a restarted node. It is no place for output of programs, which is package spool's, nor for what only the
// operator may know, which goes to the node's own log.
package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// MaxMessage bounds one message, in bytes; what is longer is cut.
const MaxMessage = 4 << 10

// Sources of an entry.
const (
	Boot  = "boot"  // bringing the sandbox up, and what the node did to it since
	Agent = "agent" // the program inside that serves the platform
)

// Levels of an entry.
const (
	Debug = "debug"
	Info  = "info"
	Warn  = "warn"
	Error = "error"
)

// Entry is one thing that was said.
type Entry struct {
	Seq     int64     `json:"seq"` // from 1 on, without gaps but for what was dropped
	At      time.Time `json:"at"`
	Source  string    `json:"source"`
	Level   string    `json:"level"`
	Message string    `json:"message"`
}

// Journal is the entries of one sandbox. The oldest half of what fits is kept for good, since how it began matters most when something is
// wrong; of what follows the newest is kept. Files are opened for each use and never synced.
type Journal struct {
	dir  string
	half int64 // bytes of the head, and of the tail

	mu     sync.Mutex
	files  []*file       // guarded by mu; the head, then those of the tail, oldest first; nil: not looked at yet
	last   int64         // guarded by mu; number of the newest entry
	grown  chan struct{} // guarded by mu; closed by the next entry, and by Close
	closed bool          // guarded by mu
}

// file holds entries of increasing numbers. Guarded by Journal.mu.
type file struct {
	name        string
	first, last int64 // numbers of its entries; zero: none
	size        int64
}

const (
	headName = "head"
	tailName = "tail-" // and the number of its first entry
	tailCuts = 4       // the tail is dropped by such parts of it
)

// Open makes a journal over a directory, which need not be there, of at most limit bytes. It touches nothing yet.
func Open(dir string, limit int64) *Journal {
	return &Journal{dir: dir, half: limit / 2, grown: make(chan struct{})}
}

// Add appends an entry, made safe to be shown: whoever wrote the message may be hostile. After Close it does nothing.
func (j *Journal) Add(source, level, message string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil
	}
	if err := j.load(); err != nil {
		return fmt.Errorf("add to a journal: %w", err)
	}
	e := Entry{Seq: j.last + 1, At: time.Now().UTC().Truncate(time.Millisecond), Source: source, Level: level, Message: Clean(message)}
	line, err := encode(e)
	if err != nil {
		return fmt.Errorf("add to a journal: %w", err)
	}
	into, err := j.room(e.Seq, int64(len(line)))
	if err == nil {
		err = into.append(j.dir, e.Seq, line)
	}
	if err != nil {
		j.files = nil // what was written in part is cut off by the next look
		return fmt.Errorf("add to a journal: %w", err)
	}
	j.last = e.Seq
	close(j.grown)
	j.grown = make(chan struct{})
	return nil
}

// room is the file for the next entry. It drops the oldest of the tail when that is too much. With mu, loaded.
func (j *Journal) room(seq, n int64) (*file, error) {
	head := j.files[0]
	if len(j.files) == 1 && head.size+n <= j.half {
		return head, nil
	}
	newest := j.files[len(j.files)-1]
	if newest != head && newest.size+n <= j.half/tailCuts {
		return newest, nil
	}
	for len(j.files) > tailCuts { // the head and all parts but one
		if err := os.Remove(filepath.Join(j.dir, j.files[1].name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		j.files = append(j.files[:1], j.files[2:]...)
	}
	f := &file{name: fmt.Sprintf("%s%d", tailName, seq)}
	j.files = append(j.files, f)
	return f, nil
}

// Position is where a reader goes on. The zero value is the beginning. Only its Seq says what was read; the rest saves looking for it.
type Position struct {
	Seq  int64 // of the last entry that was read
	name string
	at   int64
}

// Read answers at most limit entries after a position, and the position after them. grown is closed when there may be more than there were.
func (j *Journal) Read(from Position, limit int) (entries []Entry, next Position, grown <-chan struct{}, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, from, j.grown, nil
	}
	if err := j.load(); err != nil {
		return nil, from, nil, fmt.Errorf("read a journal: %w", err)
	}
	next = from
	for _, f := range j.files {
		if f.last <= next.Seq || len(entries) == limit {
			continue
		}
		at := int64(0)
		if next.name == f.name && next.at <= f.size {
			at = next.at
		}
		more, end, err := f.read(j.dir, at, next.Seq, limit-len(entries))
		if err != nil {
			return nil, from, nil, fmt.Errorf("read a journal: %w", err)
		}
		entries = append(entries, more...)
		if len(entries) > 0 {
			next = Position{Seq: entries[len(entries)-1].Seq, name: f.name, at: end}
		}
	}
	return entries, next, j.grown, nil
}

// Close ends the journal: nothing writes to its directory any more once it returns, and who waits is woken. Idempotent.
func (j *Journal) Close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.closed {
		j.closed = true
		close(j.grown)
	}
}

// Closed reports whether nothing follows any more.
func (j *Journal) Closed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.closed
}

// Clean makes a message of anyone's safe to be shown: one line of UTF-8 without control characters and without those that turn the
// direction of writing, at most MaxMessage bytes.
func Clean(message string) string {
	const more = "…"
	text := strings.ToValidUTF8(message[:min(len(message), MaxMessage)], string(utf8.RuneError))
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, text)
	if len(message) <= MaxMessage && len(text) <= MaxMessage {
		return text
	}
	end := MaxMessage - len(more)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + more
}
