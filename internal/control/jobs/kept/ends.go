package kept

import (
	"context"

	"github.com/cayhq/cay"
)

// Ends collects the beginning and the end of each stream from runs in their order. Its memory is bounded by what it collects.
type Ends struct {
	stdout, stderr end
}

// NewEnds makes Ends that collect at most most bytes of each stream.
func NewEnds(most int) *Ends {
	e := &Ends{}
	e.stdout.most, e.stderr.most = most, most
	return e
}

// Add takes the next run.
func (e *Ends) Add(r Run) error {
	s := &e.stdout
	if r.Stream == cay.Stderr {
		s = &e.stderr
	}
	if r.Gap > 0 {
		s.skip(r.Gap)
	} else {
		s.add(r.Data)
	}
	return nil
}

// Result is what was collected: of each stream its size, what there is, and what is left out between its beginning and its end.
func (e *Ends) Result() cay.JobResult {
	var r cay.JobResult
	r.Stdout, r.StdoutSize, r.StdoutGap = e.stdout.result()
	r.Stderr, r.StderrSize, r.StderrGap = e.stderr.result()
	return r
}

// end is the beginning and the end of one stream.
type end struct {
	most     int
	size     int64
	head     []byte
	headDone bool
	tail     []byte // up to twice what is wanted of it, so that it is seldom moved
}

func (s *end) headMost() int { return s.most - s.most/2 }

func (s *end) add(data []byte) {
	s.size += int64(len(data))
	if !s.headDone {
		n := min(len(data), s.headMost()-len(s.head))
		s.head = append(s.head, data[:n]...)
		s.headDone = len(s.head) == s.headMost()
		data = data[n:]
	}
	want := s.most / 2
	if len(data) > want {
		data, s.tail = data[len(data)-want:], s.tail[:0]
	}
	if len(s.tail)+len(data) > 2*want {
		s.tail = append(s.tail[:0], s.tail[len(s.tail)-want:]...)
	}
	s.tail = append(s.tail, data...)
}

// skip passes over bytes that are not there or not wanted.
func (s *end) skip(n int64) {
	if n > 0 {
		s.size, s.headDone, s.tail = s.size+n, true, s.tail[:0]
	}
}

func (s *end) result() ([]byte, int64, *cay.Gap) {
	tail := s.tail[max(0, len(s.tail)-s.most/2):]
	head := int64(len(s.head))
	missing := s.size - head - int64(len(tail))
	all := append(append(make([]byte, 0, len(s.head)+len(tail)), s.head...), tail...)
	if missing == 0 {
		return all, s.size, nil
	}
	return all, s.size, &cay.Gap{Offset: head, Bytes: missing}
}

// Ends reads the beginning and the end of each stream, at most most bytes of each, without what lies between.
func (x *Index) Ends(ctx context.Context, blob Blob, most int) (cay.JobResult, error) {
	e := NewEnds(most)
	if len(x.Inline) > 0 {
		err := x.chunks(ctx, blob, 0, 0, e.Add)
		return e.Result(), err
	}
	half := int64(most - most/2)
	wanted := func(i int) bool {
		from, to := x.Chunks[i], x.end(i)
		return from.Stdout < half || from.Stderr < half || to.Stdout > x.Stdout-half && to.Stdout > from.Stdout || to.Stderr > x.Stderr-half && to.Stderr > from.Stderr
	}
	for i := 0; i < len(x.Chunks); {
		last := i
		for last < len(x.Chunks) && wanted(last) {
			last++
		}
		if err := x.chunks(ctx, blob, i, last, e.Add); err != nil {
			return cay.JobResult{}, err
		}
		for i = last; i < len(x.Chunks) && !wanted(i); i++ {
			e.stdout.skip(x.end(i).Stdout - x.Chunks[i].Stdout)
			e.stderr.skip(x.end(i).Stderr - x.Chunks[i].Stderr)
		}
	}
	return e.Result(), nil
}
