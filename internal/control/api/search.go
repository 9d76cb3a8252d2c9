package api

import (
	"context"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

type searchFilesInput struct {
	FilePath
	Pattern  string `query:"pattern" doc:"A glob for the path relative to path: *, ?, [a-z], {a,b}, ** for any number of directories; without a slash it is matched with names. Default: everything"`
	Contains string `query:"contains" doc:"A regular expression in RE2's syntax that a line of the file matches; binary files are left out"`
	Limit    uint32 `query:"limit" default:"100" minimum:"1" maximum:"1000"`
	Cursor   string `query:"cursor" doc:"next_cursor of the page before"`
}

// FileEntry is exported because huma looks into embedded types only then.
type FileEntry = file

// match is an entry that was found.
type match struct {
	FileEntry
	Lines []matchLine `json:"lines,omitempty" doc:"The first lines that match, with contains"`
}

type matchLine struct {
	Number int64  `json:"number" doc:"From 1 on"`
	Text   string `json:"text" doc:"At most 512 bytes of the line"`
}

type searchPage struct {
	Items      []match `json:"items"`
	NextCursor *string `json:"next_cursor" doc:"Give it as cursor for what follows; null at the end"`
	Truncated  bool    `json:"truncated" doc:"The search used up the work that one request may cost; it goes on with next_cursor"`
}

type searchFilesOutput struct {
	Body searchPage
}

// maxSearchCursor bounds the cursor of a search, which is a path, in bytes.
const maxSearchCursor = 8192

func (a *API) searchFiles(ctx context.Context, in *searchFilesInput) (*searchFilesOutput, error) {
	if err := checkCursorWithin(in.Cursor, maxSearchCursor); err != nil {
		return nil, err
	}
	for field, s := range map[string]string{"pattern": in.Pattern, "contains": in.Contains} {
		if !utf8.ValidString(s) {
			return nil, cay.Errorf(cay.InvalidRequest, "`%s` must be UTF-8", field).On(field)
		}
	}
	p, err := a.place(ctx, in.FilePath)
	if err != nil {
		return nil, err
	}
	res, err := p.node.SearchFiles(ctx, connect.NewRequest(&nodev1.SearchFilesRequest{
		SandboxId: string(p.sandbox), Path: p.path, User: p.user, Pattern: in.Pattern, Contains: in.Contains, Limit: in.Limit, Cursor: in.Cursor,
	}))
	if err != nil {
		return nil, decode(err)
	}
	items := make([]match, len(res.Msg.GetItems()))
	for i, m := range res.Msg.GetItems() {
		items[i] = match{FileEntry: fileOf(m.GetFile())}
		for _, l := range m.GetLines() {
			items[i].Lines = append(items[i].Lines, matchLine{l.GetNumber(), l.GetText()})
		}
	}
	return &searchFilesOutput{Body: searchPage{items, nullable(res.Msg.GetNextCursor()), res.Msg.GetTruncated()}}, nil
}
