package agent

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"google.golang.org/protobuf/proto"
)

func TestALongMessageIsPutTogetherFromItsParts(t *testing.T) {
	want := &guestv1.ToAgent{Id: 7, Message: &guestv1.ToAgent_Start{Start: &guestv1.Start{Shell: string(bytes.Repeat([]byte("x"), 300<<10))}}}
	b, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	frames := wire.NewReader(bytes.NewReader(wire.AppendMessage(wire.AppendMessage(nil, b), b)))
	var p parts
	for range 2 {
		for {
			f, err := frames.Read()
			if err != nil {
				t.Fatal(err)
			}
			m, err := p.add(f)
			if err != nil {
				t.Fatal(err)
			}
			if m != nil {
				if !proto.Equal(m, want) || p != nil {
					t.Fatal("another message came out")
				}
				break
			}
		}
	}
}

func TestAMessageWithoutEndIsBounded(t *testing.T) {
	var p parts
	for range wire.MaxMessage/wire.MaxFrame + 1 {
		if _, err := p.add(wire.Frame{Type: wire.FramePart, Payload: make([]byte, wire.MaxFrame)}); err != nil {
			if !errors.Is(err, wire.ErrFrame) {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("%d bytes were taken", len(p))
}

// What a node sends is decoded without a crash and within bounds; nothing is executed here.
func FuzzFramesTowardsTheAgent(f *testing.F) {
	m, _ := proto.Marshal(&guestv1.ToAgent{Id: 1, Message: &guestv1.ToAgent_Ping{Ping: &guestv1.Ping{}}})
	f.Add(wire.AppendMessage(nil, m))
	f.Add(wire.AppendData(nil, wire.FrameStdin, 3, 9, []byte("input")))
	f.Add(wire.AppendFrame(nil, wire.Frame{Type: wire.FramePart, Payload: m}))
	f.Fuzz(func(t *testing.T, b []byte) {
		frames := wire.NewReader(bytes.NewReader(b))
		var p parts
		for {
			frame, err := frames.Read()
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, wire.ErrFrame) {
					t.Fatal(err)
				}
				return
			}
			switch frame.Type {
			case wire.FrameMessage, wire.FramePart:
				if _, err := p.add(frame); err != nil && !errors.Is(err, wire.ErrFrame) {
					t.Fatal(err)
				}
			case wire.FrameStdin:
				if offset, _, err := wire.SplitData(frame.Payload); err == nil && offset < 0 {
					t.Fatal("a negative offset")
				}
			}
		}
	})
}
