package api

import (
	"net/url"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cayhq/cay"
)

// ListQuery is how a page of a list is asked for. DoorListQuery differs in its names alone.
type ListQuery struct {
	Limit        int    `query:"limit" default:"50" minimum:"1" maximum:"200"`
	Cursor       string `query:"cursor" doc:"next_cursor of the page before"`
	Order        string `query:"order" enum:"desc,asc" default:"desc" doc:"By time of creation"`
	CreatedAfter string `query:"created_after" doc:"RFC 3339" example:"2026-01-02T15:04:05Z"`
	metadata     map[string]string
}

// metadataPrefix begins the name of a parameter that selects by metadata.
const metadataPrefix = "metadata."

// Resolve implements huma.Resolver: it collects metadata.KEY=VALUE.
func (q *ListQuery) Resolve(hc huma.Context) (faults []error) {
	q.metadata, faults = metadataQuery(hc)
	return faults
}

func metadataQuery(hc huma.Context) (map[string]string, []error) {
	u := hc.URL()
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, []error{cay.Errorf(cay.InvalidRequest, "the query cannot be read: %v", err)}
	}
	var metadata map[string]string
	for name, values := range query {
		if key, ok := strings.CutPrefix(name, metadataPrefix); ok {
			if metadata == nil {
				metadata = map[string]string{}
			}
			metadata[key] = values[0]
		}
	}
	if err := checkMetadata(metadata); err != nil {
		return nil, []error{err}
	}
	return metadata, nil
}

// check refuses what no list takes, and answers created_after, the zero time for none.
func (q *ListQuery) check() (after time.Time, err error) {
	if err := checkCursor(q.Cursor); err != nil {
		return after, err
	}
	if q.CreatedAfter == "" {
		return after, nil
	}
	if after, err = time.Parse(time.RFC3339, q.CreatedAfter); err != nil {
		return after, cay.Errorf(cay.InvalidRequest, "`created_after` must be a time such as 2026-01-02T15:04:05Z").On("created_after")
	}
	return after, nil
}
