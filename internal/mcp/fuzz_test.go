package mcp

import (
	"testing"
	"unicode/utf8"
)

func FuzzWhatIsShownOfOutputIsBoundedText(f *testing.F) {
	f.Add([]byte("head\xff"), []byte("tail\xc3\xa4"), uint8(8))
	f.Add([]byte("äöü"), []byte(""), uint8(2))
	f.Fuzz(func(t *testing.T, first, second []byte, limit uint8) {
		w := newWindow(int(limit))
		w.Write(first)
		w.Write(second)
		text, truncated, _ := w.text()
		if !utf8.ValidString(text) || len(text) > 3*int(limit)+80 || w.size != int64(len(first)+len(second)) || len(w.tail) > 2*w.limit+len(second) {
			t.Errorf("%q of %d bytes", text, w.size)
		}
		if whole := string(first) + string(second); !truncated && utf8.ValidString(whole) && text != whole {
			t.Errorf("%q is shown of %q", text, whole)
		}
		line := lastLine{}
		line.Write(first)
		line.Write(second)
		if len(line.text()) > maxLine {
			t.Errorf("a line of %d bytes", len(line.text()))
		}
	})
}

func FuzzAMessageIsLookedAtSafely(f *testing.F) {
	f.Add([]byte(`{"id":1,"method":"tools/call"}`))
	f.Add([]byte(`{"method":"notifications/cancelled","params":{"requestId":"a"}}`))
	f.Add([]byte(`[{"id":{}}]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		x := &exchange{}
		if method, canceled := x.look(body); canceled != "" && method != "notifications/cancelled" || x.call != "" && method != "tools/call" {
			t.Errorf("%q: method %q, call %q, cancels %q", body, method, x.call, canceled)
		}
	})
}
