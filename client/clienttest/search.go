package clienttest

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	pathpkg "path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// searchFiles answers pages of at most two, of which the first is empty, as if it had cost too much: clients must go on. Pattern is
// of names alone.
func searchFiles(w http.ResponseWriter, r *http.Request, t *tree) {
	q := r.URL.Query()
	dir, pattern := pathpkg.Clean(q.Get("path")), q.Get("pattern")
	contains, err := regexp.Compile(q.Get("contains"))
	if err != nil {
		problem(w, 400, "invalid_request", "contains: "+err.Error())
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.get(w, dir) == nil {
		return
	}
	found := []map[string]any{}
	for _, path := range slices.Sorted(maps.Keys(t.entries)) {
		fits, _ := pathpkg.Match(pattern, pathpkg.Base(path))
		if !strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") || pattern != "" && !fits {
			continue
		}
		info := t.info(path)
		if q.Get("contains") != "" {
			lines := matching(t.entries[path].Content, contains)
			if len(lines) == 0 {
				continue
			}
			info["lines"] = lines
		}
		found = append(found, info)
	}
	if q.Get("cursor") == "" {
		answer(w, 200, map[string]any{"items": []any{}, "next_cursor": "0", "truncated": true})
		return
	}
	from, _ := strconv.Atoi(q.Get("cursor"))
	to := min(len(found), from+2)
	var next any
	if to < len(found) {
		next = fmt.Sprint(to)
	}
	answer(w, 200, map[string]any{"items": found[from:to], "next_cursor": next, "truncated": false})
}

func matching(content []byte, expression *regexp.Regexp) []map[string]any {
	var out []map[string]any
	for i, line := range bytes.Split(content, []byte("\n")) {
		if expression.Match(line) {
			out = append(out, map[string]any{"number": i + 1, "text": string(line)})
		}
	}
	return out
}
