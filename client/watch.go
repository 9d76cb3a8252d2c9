package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
)

// WatchType says what a [WatchEvent] tells.
type WatchType string

// What happened below a directory that is watched.
const (
	WatchReady    WatchType = "ready" // changes are seen from here on; comes first
	WatchCreate   WatchType = "create"
	WatchWrite    WatchType = "write"
	WatchRemove   WatchType = "remove"
	WatchRename   WatchType = "rename"
	WatchChmod    WatchType = "chmod"
	WatchOverflow WatchType = "overflow" // changes were missed: look at the files themselves
)

// WatchEvent is a change below a directory.
type WatchEvent struct {
	Type WatchType `json:"type"`
	Path string    `json:"path"` // of ready: what is watched
	To   string    `json:"to"`   // of a rename
}

// UnmarshalJSON takes paths that are no UTF-8 by their percent-encoding.
func (e *WatchEvent) UnmarshalJSON(data []byte) error {
	type plain WatchEvent
	doc := struct {
		*plain
		PathPercent string `json:"path_percent"`
		ToPercent   string `json:"to_percent"`
	}{plain: (*plain)(e)}
	if err := json.Unmarshal(data, &doc); err != nil {
		return err
	}
	if err := unpercent(&e.Path, doc.PathPercent); err != nil {
		return err
	}
	return unpercent(&e.To, doc.ToPercent)
}

// WatchOptions says what to watch.
type WatchOptions struct {
	Recursive bool // directories within directories as well
}

// Watch yields the changes of a directory or file until the loop is left, ctx ends, or what is watched is itself removed or moved. A
// broken connection is made again, with an overflow for what was missed and another ready.
func (f *Files) Watch(ctx context.Context, path string, o WatchOptions) iter.Seq2[WatchEvent, error] {
	query := url.Values{}
	if o.Recursive {
		query.Set("recursive", "true")
	}
	r := f.actionCall(http.MethodGet, path, query, "watch")
	return func(yield func(WatchEvent, error) bool) {
		missed := false
		w := &feed{c: f.c, attempted: "watch " + path,
			open: func(string) *call { return &call{method: http.MethodGet, path: r.path, query: r.query} },
			lost: func() bool {
				if missed { // said already
					return false
				}
				missed = true
				return !yield(WatchEvent{Type: WatchOverflow, Path: path}, nil)
			},
			event: func(ev sseEvent) (bool, error) {
				if err := errorEvent(ev); err != nil {
					return false, err
				}
				var e WatchEvent
				switch ev.name {
				case "ready":
					missed = false
				case "overflow", "change":
				default:
					return false, nil
				}
				if err := json.Unmarshal(ev.data, &e); err != nil {
					return false, fmt.Errorf("%w: event %q: %w", errProtocol, ev.name, err)
				}
				if ev.name != "change" {
					e.Type = WatchType(ev.name)
				}
				return !yield(e, nil), nil
			},
		}
		if err := w.run(ctx); err != nil {
			yield(WatchEvent{}, err)
		}
	}
}
