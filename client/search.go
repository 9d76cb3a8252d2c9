package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
)

// SearchOptions says what to look for; both must fit where both are given.
type SearchOptions struct {
	Pattern  string // of paths below the directory, as in src/**/*.go; without a slash of names, as in *.{go,mod}
	Contains string // a regular expression (RE2) that a line of the file matches; binary files never do
	PageSize int    // 0: the server's choice; at most 1000
}

// Match is a file that was found.
type Match struct {
	FileInfo
	Lines []MatchLine // the first that match Contains
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

// MatchLine is a line that matches, of which Text is at most 512 bytes.
type MatchLine struct {
	Number int    `json:"number"` // from 1
	Text   string `json:"text"`
}

// Search yields the files below a directory that fit, in the order of their names, page by page.
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
	r := f.actionCall(http.MethodGet, path, query, "search")
	return pages[Match](ctx, f.c, r.path, r.query, "search "+path)
}
