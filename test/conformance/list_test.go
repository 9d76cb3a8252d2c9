package conformance

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// flock is some sandboxes of a project of their own, oldest first.
type flock struct {
	client *testkit.Client
	boxes  []testkit.SandboxObject
}

// herd makes n sandboxes one after the other, each with its number and whether it is even as metadata.
func herd(t *testing.T, n int) flock {
	t.Helper()
	f := flock{client: testkit.Server(t).NewTenant(t).Key(t, time.Time{}, "sandboxes:read", "sandboxes:write", "jobs")}
	t.Cleanup(func() {
		if err := f.client.DeleteAll(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for i := range n {
		sb, err := f.client.CreateSandbox(t.Context(), fields{
			"memory_mb": 128, "disk_gb": 0.1, "metadata": fields{"number": fmt.Sprint(i), "even": fmt.Sprint(i%2 == 0), "odd key.ü/%": "a=b&c"},
		})
		if err != nil {
			t.Fatal(err)
		}
		f.boxes = append(f.boxes, sb)
	}
	return f
}

// list reads one page.
func (f flock) list(t *testing.T, query string) (numbers, next string) {
	t.Helper()
	resp, err := f.client.Do(t.Context(), "GET", "/v1/sandboxes?"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	var page struct {
		Items      []testkit.SandboxObject `json:"items"`
		NextCursor *string                 `json:"next_cursor"`
	}
	if err := resp.Decode(200, &page); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	for _, sb := range page.Items {
		numbers += sb.Metadata["number"]
	}
	if page.NextCursor != nil {
		next = *page.NextCursor
	}
	return numbers, next
}

func (f flock) act(t *testing.T, n int, method, rest string) {
	t.Helper()
	resp, err := f.client.Do(t.Context(), method, "/v1/sandboxes/"+f.boxes[n].ID+rest, nil)
	if err != nil || resp.Status/100 != 2 {
		t.Fatalf("%s %s: %v, %v", method, rest, resp, err)
	}
}

func TestAListIsPagedFilteredAndOrdered(t *testing.T) {
	t.Parallel()
	f := herd(t, 6)
	f.act(t, 1, "POST", "/pause")
	f.act(t, 4, "DELETE", "")

	for query, want := range map[string]string{
		"":                                      "543210",
		"order=asc":                             "012345",
		"order=desc&limit=200":                  "543210",
		"status=active":                         "53210",
		"status=READY":                          "5320",
		"status=PAUSED":                         "1",
		"status=PAUSED,TERMINATED":              "41",
		"status=TERMINATED&order=asc":           "4",
		"status=FAILED":                         "",
		"status=active,TERMINATED":              "543210",
		"metadata.even=true":                    "420",
		"metadata.even=true&status=active":      "20",
		"metadata.even=true&metadata.number=2":  "2",
		"metadata.even=false&metadata.number=2": "",
		"metadata.even=tru":                     "",
		"metadata.nothing=1":                    "",
		"metadata." + url.QueryEscape("odd key.ü/%") + "=" + url.QueryEscape("a=b&c"): "543210",
	} {
		if got, next := f.list(t, query); got != want || next != "" {
			t.Errorf("%q lists %q with cursor %q, want %q", query, got, next, want)
		}
	}

	after := func(n int) string {
		return "created_after=" + url.QueryEscape(f.boxes[n].CreatedAt.UTC().Format("2006-01-02T15:04:05.000Z07:00"))
	}
	if got, _ := f.list(t, after(3)); !strings.HasPrefix(got, "54") || strings.ContainsAny(got, "210") {
		t.Errorf("after number 3 come %q", got)
	}
	if got, _ := f.list(t, "created_after="+url.QueryEscape(time.Now().Add(time.Hour).Format(time.RFC3339))); got != "" {
		t.Errorf("made in the future are %q", got)
	}
}

func TestCursorsGoThroughAListWithoutLossAlsoWhileItChanges(t *testing.T) {
	t.Parallel()
	f := herd(t, 5)
	for _, query := range []string{"order=desc", "order=asc", "status=active&order=asc", "metadata.even=true"} {
		for limit := 1; limit <= 6; limit++ {
			var pages []string
			for cursor := ""; ; {
				got, next := f.list(t, fmt.Sprintf("%s&limit=%d&cursor=%s", query, limit, url.QueryEscape(cursor)))
				pages = append(pages, got)
				if len(got) > limit || next != "" && len(got) < limit {
					t.Errorf("%s: a page of %d holds %q and goes on at %q", query, limit, got, next)
				}
				if cursor = next; next == "" || len(pages) > 10 {
					break
				}
			}
			whole, _ := f.list(t, query)
			if got := strings.Join(pages, ""); got != whole {
				t.Errorf("%s by %d: the pages hold %q, want %q", query, limit, pages, whole)
			}
		}
	}
	first, next := f.list(t, "limit=2")
	f.act(t, 4, "DELETE", "")
	f.act(t, 2, "DELETE", "")
	if _, err := f.client.CreateSandbox(t.Context(), fields{"memory_mb": 128, "disk_gb": 0.1, "metadata": fields{"number": "9"}}); err != nil {
		t.Fatal(err)
	}
	if rest, _ := f.list(t, "cursor="+url.QueryEscape(next)); first+rest != "43210" {
		t.Errorf("while it changed the pages held %q and %q", first, rest)
	}
}

func TestAListRefusesWhatItDoesNotKnowByName(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	for query, field := range map[string]string{
		"limit=0": "limit", "limit=-1": "limit", "limit=201": "limit", "limit=x": "limit", "limit=1e2": "limit", "limit=99999999999999999999": "limit",
		"cursor=x": "cursor", "cursor=" + strings.Repeat("A", 3000): "cursor", "cursor=%00": "cursor", "cursor=MTIz": "cursor",
		"order=up": "order", "order=DESC": "order", "created_after=yesterday": "created_after", "created_after=1700000000": "created_after",
		"status=ready": "status", "status=READY,": "status", "status=READY,nope": "status", "metadata.=x": "metadata", "metadata": "metadata",
		"metadata.a=%ff": "metadata", "page=2": "page", "limit=1&limit=2": "limit", "metadata.a=1&metadata.a=2": "metadata.a",
	} {
		resp, err := inst.Do(t.Context(), "GET", "/v1/sandboxes?"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		if p := resp.Problem(); resp.Status != 400 || p.Reason != "invalid_request" || !strings.Contains(p.Field+p.Detail, field) {
			t.Errorf("%.80s: %v, want a 400 that names %s", query, resp, field)
		}
	}
}

func TestAListShowsOnlyOnesOwnProject(t *testing.T) {
	t.Parallel()
	mine, theirs := herd(t, 2), herd(t, 1)
	if got, _ := mine.list(t, ""); got != "10" {
		t.Errorf("the list is %q", got)
	}
	all, err := theirs.client.ListSandboxes(t.Context(), "")
	if err != nil || len(all) != 1 || slices.ContainsFunc(mine.boxes, func(sb testkit.SandboxObject) bool { return sb.ID == all[0].ID }) {
		t.Errorf("another project sees %+v, %v", all, err)
	}
	_, next := mine.list(t, "limit=1")
	if got, _ := theirs.list(t, "cursor="+url.QueryEscape(next)); got != "" && got != "0" {
		t.Errorf("with a cursor of another project it sees %q", got)
	}
	if resp, err := theirs.client.Do(t.Context(), "GET", "/v1/sandboxes/"+mine.boxes[0].ID, nil); err != nil || resp.Status != 404 {
		t.Errorf("a sandbox of another project: %v, %v", resp, err)
	}
}
