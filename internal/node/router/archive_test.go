package router_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/router"
	"github.com/cayhq/cay/internal/node/router/agenttest"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

func bulkHeader(h *guestv1.BulkHeader) []byte {
	p, err := proto.Marshal(h)
	if err != nil {
		panic(err)
	}
	return wire.AppendFrame(nil, wire.Frame{Type: wire.FrameHeader, Payload: p})
}

func dataFrame(b []byte) []byte {
	return wire.AppendFrame(nil, wire.Frame{Type: wire.FrameData, Payload: b})
}

func eventFrame(e *guestv1.WatchEvent) []byte {
	p, err := proto.Marshal(e)
	if err != nil {
		panic(err)
	}
	return dataFrame(p)
}

var (
	beginning = bulkHeader(&guestv1.BulkHeader{Done: &guestv1.Done{}})
	ending    = wire.AppendFrame(nil, wire.Frame{Type: wire.FrameEnd})
)

// says is an agent whose every transfer says this, and then hangs up.
func says(frames ...[]byte) *agenttest.Agent {
	return &agenttest.Agent{Transfer: func(_ *guestv1.Bulk, c net.Conn) {
		for _, f := range frames {
			if _, err := c.Write(f); err != nil {
				return
			}
		}
	}}
}

func readAll(next func() ([]byte, error)) (string, error) {
	var all []byte
	for {
		b, err := next()
		if err == io.EOF {
			return string(all), nil
		}
		if err != nil {
			return string(all), err
		}
		all = append(all, b...)
	}
}

func TestAnArchiveIsWholeOrAnError(t *testing.T) {
	fault := bulkHeader(&guestv1.BulkHeader{Problem: &guestv1.Problem{Reason: "conflict", Detail: "it changed"}})
	for name, c := range map[string]struct {
		frames [][]byte
		reason cay.ErrorReason // "" for a whole one
	}{
		"whole":                     {[][]byte{beginning, dataFrame([]byte("ab")), dataFrame([]byte("c")), ending}, ""},
		"refused":                   {[][]byte{fault}, cay.Conflict},
		"cut":                       {[][]byte{beginning, dataFrame([]byte("ab"))}, cay.Unavailable},
		"cut within a frame":        {[][]byte{beginning, dataFrame([]byte("ab"))[:17]}, cay.Unavailable},
		"a fault in the middle":     {[][]byte{beginning, dataFrame([]byte("ab")), fault}, cay.Conflict},
		"a second beginning":        {[][]byte{beginning, beginning, ending}, cay.Unavailable},
		"no header":                 {[][]byte{dataFrame([]byte("ab")), ending}, cay.Unavailable},
		"a header of another kind":  {[][]byte{bulkHeader(&guestv1.BulkHeader{File: &guestv1.FileInfo{}}), ending}, cay.Unavailable},
		"an empty header":           {[][]byte{bulkHeader(&guestv1.BulkHeader{})}, cay.Unavailable},
		"a fault of the platform's": {[][]byte{bulkHeader(&guestv1.BulkHeader{Problem: &guestv1.Problem{Reason: "internal", Detail: "x"}})}, cay.Unprocessable},
		"a frame of another kind":   {[][]byte{beginning, wire.AppendFrame(nil, wire.Frame{Type: wire.FrameCommit})}, cay.Unavailable},
	} {
		r := start(t, says(c.frames...))
		got, err := "", error(nil)
		f, err := r.ReadArchive(t.Context(), &guestv1.ReadArchive{Path: "/"})
		if err == nil {
			got, err = readAll(f.Next)
			f.Close()
		}
		if c.reason == "" && (err != nil || got != "abc") || c.reason != "" && cay.ReasonOf(err) != c.reason {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestTheCountsOfAnArchiveAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		header *guestv1.BulkHeader
		reason cay.ErrorReason
	}{
		"good":         {&guestv1.BulkHeader{Archive: &guestv1.ArchiveInfo{Files: 2, Bytes: 3}}, ""},
		"negative":     {&guestv1.BulkHeader{Archive: &guestv1.ArchiveInfo{Files: -2}}, cay.Unavailable},
		"none":         {&guestv1.BulkHeader{Done: &guestv1.Done{}}, cay.Unavailable},
		"a full disk":  {&guestv1.BulkHeader{Problem: &guestv1.Problem{Reason: "disk_full"}}, cay.DiskFull},
		"a bad reason": {&guestv1.BulkHeader{Problem: &guestv1.Problem{Reason: "unauthorized"}}, cay.Unprocessable},
	} {
		r := start(t, &agenttest.Agent{Transfer: func(_ *guestv1.Bulk, conn net.Conn) {
			frames := wire.NewReader(conn)
			for {
				f, err := frames.Read()
				if err != nil || f.Type == wire.FrameCommit {
					break
				}
			}
			conn.Write(bulkHeader(c.header))
		}})
		w, err := r.WriteArchive(t.Context(), &guestv1.WriteArchive{Path: "/"})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write([]byte("data")); err != nil {
			t.Fatal(err)
		}
		info, err := w.Commit()
		w.Close()
		if c.reason == "" && (err != nil || info.Files != 2) || c.reason != "" && cay.ReasonOf(err) != c.reason {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

func TestEventsOfAWatchThatMakeNoSenseEndIt(t *testing.T) {
	good := eventFrame(&guestv1.WatchEvent{Type: "rename", Path: "/a", To: cay.WirePath("/caf\xe9")})
	for name, c := range map[string]struct {
		frame []byte
		good  bool
	}{
		"the end":             {ending, true},
		"an overflow":         {eventFrame(&guestv1.WatchEvent{Type: "overflow"}), true},
		"an unknown type":     {eventFrame(&guestv1.WatchEvent{Type: "ready", Path: "/a"}), false},
		"a relative path":     {eventFrame(&guestv1.WatchEvent{Type: "create", Path: "a"}), false},
		"no path":             {eventFrame(&guestv1.WatchEvent{Type: "create"}), false},
		"a rename to nowhere": {eventFrame(&guestv1.WatchEvent{Type: "rename", Path: "/a"}), false},
		"a target too many":   {eventFrame(&guestv1.WatchEvent{Type: "write", Path: "/a", To: "/b"}), false},
		"a long path":         {eventFrame(&guestv1.WatchEvent{Type: "create", Path: "/" + strings.Repeat("n", 20_000)}), false},
		"a malformed path":    {eventFrame(&guestv1.WatchEvent{Type: "create", Path: "%/%zz"}), false},
		"no message":          {dataFrame([]byte("\xff\xff")), false},
		"a cut":               {nil, false},
	} {
		r := start(t, says(beginning, good, c.frame))
		w, err := r.WatchFiles(t.Context(), &guestv1.Watch{Path: "/"})
		if err != nil {
			t.Fatal(err)
		}
		if e, err := w.Next(); err != nil || e.To != cay.WirePath("/caf\xe9") {
			t.Fatalf("%v, %v", e, err)
		}
		if _, err = w.Next(); c.good != (err == nil || errors.Is(err, io.EOF)) {
			t.Errorf("%s: %v", name, err)
		}
		w.Close()
	}
}

func TestWatchesAreCountedAndIdleOnesAreNoActivity(t *testing.T) {
	r := start(t, &agenttest.Agent{Transfer: func(_ *guestv1.Bulk, c net.Conn) {
		c.Write(beginning)
		io.Copy(io.Discard, c)
	}})
	var watches []*router.FileWatch
	for {
		w, err := r.WatchFiles(t.Context(), &guestv1.Watch{Path: "/"})
		if err != nil {
			if cay.ReasonOf(err) != cay.Conflict {
				t.Fatal(err)
			}
			break
		}
		watches = append(watches, w)
		if len(watches) > 1000 {
			t.Fatal("there is no bound")
		}
	}
	_, before := r.Activity()
	eventually(t, "the clock goes on", func() bool { return time.Now().UnixMilli() > before.UnixMilli()+5 })
	for _, w := range watches {
		w.Close()
	}
	if _, after := r.Activity(); !after.Equal(before) {
		t.Errorf("the end of watches counted as activity")
	}
	w, err := r.WatchFiles(t.Context(), &guestv1.Watch{Path: "/"})
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
}

func TestAnAnswerToASearchWithoutFilesIsNone(t *testing.T) {
	r := start(t, &agenttest.Agent{Answer: func(m *guestv1.ToAgent) *guestv1.ToNode {
		if m.GetSearch() == nil {
			return nil
		}
		return &guestv1.ToNode{Message: &guestv1.ToNode_Search{Search: &guestv1.SearchResult{Items: []*guestv1.SearchResult_Match{{}}}}}
	}})
	if _, err := r.SearchFiles(t.Context(), &guestv1.Search{Path: "/"}); cay.ReasonOf(err) != cay.Unavailable {
		t.Errorf("%v", err)
	}
}
