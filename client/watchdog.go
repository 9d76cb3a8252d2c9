package client

import (
	"io"
	"time"
)

// watchdog calls bite once nothing has fed it for a while.
type watchdog struct {
	after time.Duration
	timer *time.Timer
}

func newWatchdog(after time.Duration, bite func()) *watchdog {
	return &watchdog{after: after, timer: time.AfterFunc(after, bite)}
}

func (w *watchdog) feed() { w.timer.Reset(w.after) }
func (w *watchdog) stop() { w.timer.Stop() }

// reader feeds the watchdog with every read that brings something.
func (w *watchdog) reader(r io.Reader) io.Reader { return feedingReader{r, w} }

type feedingReader struct {
	r io.Reader
	w *watchdog
}

func (f feedingReader) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if n > 0 {
		f.w.feed()
	}
	return n, err
}
