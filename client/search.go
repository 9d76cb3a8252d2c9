package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
)

// SearchOptions says what to look for; both must fit where both are given.
type SearchOptions struct {
	Pattern  string // of names, as in *.go
	Contains string // text within files
	PageSize int    // 0: the server's choice; at most 1000
}

// Match is a file that was found.
type Match struct {
	FileInfo
	Lines []MatchLine // that hold the text looked for
}

// UnmarshalJSON reads both parts.
func (m *Match) UnmarshalJSON(data []byte) error {
	var doc struct {
		Lines []MatchLine `json:"lines"`
	}
	if err := unmarshalBoth(data, &m.FileInfo, &doc); err != nil {
		return err
	}
	m.Lines = doc.Lines
	return nil
}

// MatchLine is a line that holds the text looked for.
type MatchLine struct {
	Number int    `json:"number"` // from 1
	Text   string `json:"text"`
}

// ErrSearchTruncated is a search that the server gave up before it had seen everything: what was found is right, but not all.
var ErrSearchTruncated = errors.New("the search ended before everything was looked at; search a smaller folder")

// Search yields the files below a directory that fit, page by page. Its last error may be [ErrSearchTruncated].
func (f *Files) Search(ctx context.Context, path string, o SearchOptions) iter.Seq2[Match, error] {
	query := url.Values{}
	for name, value := range map[string]string{"pattern": o.Pattern, "contains": o.Contains} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if o.PageSize > 0 {
		query.Set("limit", strconv.Itoa(o.PageSize))
	}
	base := f.call(http.MethodGet, path, query, "search")
	return func(yield func(Match, error) bool) {
		truncated := false
		for cursor := ""; ; {
			var p struct {
				page[Match]
				Truncated bool `json:"truncated"`
			}
			q := cloneValues(base.query)
			if cursor != "" {
				q.Set("cursor", cursor)
			}
			if _, err := f.c.json(ctx, &call{method: http.MethodGet, path: base.path, query: q}, &p); err != nil {
				yield(Match{}, fmt.Errorf("search %s: %w", path, err))
				return
			}
			truncated = truncated || p.Truncated
			for _, m := range p.Items {
				if !yield(m, nil) {
					return
				}
			}
			if p.NextCursor == "" {
				break
			}
			if p.NextCursor == cursor {
				yield(Match{}, fmt.Errorf("search %s: %w", path, errStuck))
				return
			}
			cursor = p.NextCursor
		}
		if truncated {
			yield(Match{}, fmt.Errorf("search %s: %w", path, ErrSearchTruncated))
		}
	}
}
