package process

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/wire"
)

// A backlog is compared with the bytes it was given, through random writes, sends, acknowledgements and reconnects.
func TestWhatABacklogSendsIsWhatItTookFromTheAcknowledgedOffsetOn(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		var b backlog
		var given, streams []byte
		position := int64(0) // of the receiver, since the last rewind
		for range 300 {
			switch r.IntN(5) {
			case 0, 1:
				n := 1 + r.IntN(10)
				if r.IntN(8) == 0 {
					n = r.IntN(wire.MaxDataRun) + 1
				}
				block := blocks.Get().(*[wire.MaxDataRun]byte)
				for i := range block[:n] {
					block[i] = byte(r.Uint32())
				}
				stream := wire.FrameStdout + wire.FrameType(r.IntN(2))
				given = append(given, block[:n]...)
				streams = append(streams, bytes.Repeat([]byte{byte(stream)}, n)...)
				if !b.take(stream, block, n) {
					blocks.Put(block)
				}
			case 2:
				for range r.IntN(5) {
					stream, offset, data := b.next(1 + r.IntN(3000))
					if data == nil {
						break
					}
					end := offset + int64(len(data))
					if offset != position || !bytes.Equal(data, given[offset:end]) || strings.Count(string(streams[offset:end]), string(rune(stream))) != len(data) {
						t.Fatalf("seed %d: %d bytes at %d, expected position %d", seed, len(data), offset, position)
					}
					position = end
				}
			case 3:
				b.ack(b.acked + int64(r.IntN(int(b.sent-b.acked)+1)))
			case 4:
				if r.IntN(10) == 0 {
					b.rewind()
					position = b.acked
				}
			}
			held := 0
			for i := range b.segments {
				held += b.segments[i].cost()
			}
			if held != b.held || b.produced != int64(len(given)) {
				t.Fatalf("seed %d: held %d, counted %d; produced %d of %d", seed, held, b.held, b.produced, len(given))
			}
		}
		b.drop()
		if b.held != 0 || b.segments != nil {
			t.Fatalf("seed %d: %d bytes after drop", seed, b.held)
		}
	}
}

func TestTinyWritesAreChargedForWhatTheyTake(t *testing.T) {
	var b backlog
	block := new([wire.MaxDataRun]byte)
	for i := 0; b.held < heldPerProcess; i++ {
		b.take(wire.FrameStdout+wire.FrameType(i%2), block, 1)
	}
	if len(b.segments) > heldPerProcess/segmentCost {
		t.Errorf("%d segments", len(b.segments))
	}
}

func FuzzParseStatus(f *testing.F) {
	f.Add([]byte("1 (exp) S 0 1 1 0 0 0 0 0 0 0 10 1 0 0 20 0 5 0 5 1265000448 3281 1 0"))
	f.Add([]byte("7 (a) b) (c\n) R 1 2 3"))
	f.Fuzz(func(t *testing.T, line []byte) { parseStatus(line) })
}

func TestAStatusIsReadWhateverTheNameHolds(t *testing.T) {
	s, ok := parseStatus([]byte("12 (a) R 1 (\n) S 3 4 5 0 0 0 0 0 0 0 10 1 0 0 20 0 5 0 77 1265000448 2 1 0 0"))
	if !ok || s.pid != 12 || s.name != "a) R 1 (\n" || s.state != "S" || s.ppid != 3 || s.session != 5 || s.cpuTicks != 11 || s.startTicks != 77 || s.rss != 8192 {
		t.Errorf("%+v, %v", s, ok)
	}
}
