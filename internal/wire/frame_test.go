package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"pgregory.net/rapid"
)

func TestFramesComeBackAsTheyWereSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frames := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Frame {
			return Frame{
				Type:    FrameType(rapid.IntRange(int(FrameMessage), int(FrameCommit)).Draw(t, "type")),
				Stream:  rapid.Uint64().Draw(t, "stream"),
				Payload: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload"),
			}
		}), 0, 20).Draw(t, "frames")
		var b []byte
		for _, f := range frames {
			b = AppendFrame(b, f)
		}
		r := NewReader(bytes.NewReader(b))
		for _, want := range frames {
			got, err := r.Read()
			if err != nil || got.Type != want.Type || got.Stream != want.Stream || !bytes.Equal(got.Payload, want.Payload) {
				t.Fatalf("got %+v, %v; want %+v", got, err, want)
			}
		}
		if _, err := r.Read(); err != io.EOF {
			t.Fatalf("after the last frame: %v", err)
		}
	})
}

func TestAnOversizedOrUnknownFrameEndsTheConnectionWithoutBeingRead(t *testing.T) {
	good := AppendFrame(nil, Frame{Type: FrameMessage, Payload: []byte("x")})
	for name, spoil := range map[string]func([]byte){
		"length beyond the bound": func(b []byte) { binary.BigEndian.PutUint32(b, MaxFrame+1) },
		"length of 4 GiB":         func(b []byte) { binary.BigEndian.PutUint32(b, 1<<32-1) },
		"type zero":               func(b []byte) { b[4] = 0 },
		"type unknown":            func(b []byte) { b[4] = 200 },
		"reserved bytes":          func(b []byte) { b[6] = 1 },
	} {
		b := bytes.Clone(good)
		spoil(b)
		if _, err := NewReader(bytes.NewReader(b)).Read(); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestACutFrameIsNotACleanEnd(t *testing.T) {
	whole := AppendFrame(nil, Frame{Type: FrameData, Payload: []byte("payload")})
	for cut := 1; cut < len(whole); cut++ {
		if _, err := NewReader(bytes.NewReader(whole[:cut])).Read(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut after %d bytes: %v", cut, err)
		}
	}
}

func TestDataCarriesItsOffset(t *testing.T) {
	f, err := NewReader(bytes.NewReader(AppendData(nil, FrameStderr, 7, 1<<40, []byte("abc")))).Read()
	if err != nil || f.Stream != 7 || f.Type != FrameStderr {
		t.Fatalf("got %+v, %v", f, err)
	}
	if offset, data, err := SplitData(f.Payload); offset != 1<<40 || string(data) != "abc" || err != nil {
		t.Errorf("got %d %q %v", offset, data, err)
	}
	if _, _, err := SplitData([]byte("short")); !errors.Is(err, ErrFrame) {
		t.Errorf("a run without an offset: %v", err)
	}
	if _, _, err := SplitData(bytes.Repeat([]byte{0xff}, 8)); !errors.Is(err, ErrFrame) {
		t.Errorf("a negative offset: %v", err)
	}
}

func TestPreamble(t *testing.T) {
	p := Preamble{Kind: ConnBulk, Token: [TokenLen]byte{1, 2, 3}}
	var b bytes.Buffer
	if err := WritePreamble(&b, p); err != nil {
		t.Fatal(err)
	}
	raw := bytes.Clone(b.Bytes())
	if got, err := ReadPreamble(&b); err != nil || got != p {
		t.Errorf("got %+v, %v", got, err)
	}
	for i := range 5 {
		bad := bytes.Clone(raw)
		bad[i] ^= 0x40
		if _, err := ReadPreamble(bytes.NewReader(bad)); !errors.Is(err, ErrFrame) {
			t.Errorf("byte %d spoilt: %v", i, err)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add(AppendFrame(nil, Frame{Type: FrameMessage, Payload: []byte("hello")}))
	f.Add(AppendData(nil, FrameStdout, 1, 5, []byte("out")))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b))
		for {
			frame, err := r.Read()
			if err != nil {
				return
			}
			if len(frame.Payload) > MaxFrame {
				t.Fatalf("a payload of %d bytes", len(frame.Payload))
			}
			if offset, _, err := SplitData(frame.Payload); err == nil && offset < 0 {
				t.Fatalf("offset %d", offset)
			}
		}
	})
}
