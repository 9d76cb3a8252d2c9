package cay_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// agree fails unless the diagram below a heading of ARCHITECTURE.md shows of all pairs of statuses those that may follow each other.
func agree[S ~string](t *testing.T, heading string, statuses []S, may func(from, to S) bool) {
	t.Helper()
	doc, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(doc), "## "+heading+"\n")
	if !ok {
		t.Fatalf("ARCHITECTURE.md has no section %q", heading)
	}
	_, drawing, ok := strings.Cut(section, "```\n")
	if !ok {
		t.Fatalf("the section %q has no drawing", heading)
	}
	drawing, _, _ = strings.Cut(drawing, "```")
	drawn := edges(drawing)
	if len(drawn) == 0 {
		t.Fatal("nothing was read from the diagram")
	}
	for pair := range drawn {
		if !slices.Contains(statuses, S(pair[0])) || !slices.Contains(statuses, S(pair[1])) {
			t.Errorf("the diagram shows %s → %s, which are not both statuses", pair[0], pair[1])
		}
	}
	for _, from := range statuses {
		for _, to := range statuses {
			if got, want := drawn[[2]string{string(from), string(to)}], may(from, to); got != want {
				t.Errorf("%s → %s: drawn %v, possible %v", from, to, got, want)
			}
		}
	}
}

var drawnNames = regexp.MustCompile(`[A-Za-z]+`)

// edges reads a drawing: arrows between names of one line, where names with commas between them share the arrow, and lines that rise in a └: what
// they point at follows everything whose stem meets them.
func edges(drawing string) map[[2]string]bool {
	found := map[[2]string]bool{}
	link := func(from, to []string) {
		for _, f := range from {
			for _, t := range to {
				found[[2]string{f, t}] = true
			}
		}
	}
	columns := map[string][]int{} // where each name begins, in the lines read so far
	for line := range strings.Lines(drawing) {
		var groups [][]string
		var arrows []string // before each group
		end := 0            // of the name before
		for _, span := range drawnNames.FindAllStringIndex(line, -1) {
			name, between := line[span[0]:span[1]], line[end:span[0]]
			columns[name] = append(columns[name], len([]rune(line[:span[0]]))) // the drawing is not ASCII
			end = span[1]
			if len(groups) > 0 && strings.TrimSpace(between) == "," {
				groups[len(groups)-1] = append(groups[len(groups)-1], name)
			} else {
				groups, arrows = append(groups, []string{name}), append(arrows, between)
			}
		}
		for i := 1; i < len(groups); i++ {
			if strings.Contains(arrows[i], ">") {
				link(groups[i-1], groups[i])
			}
			if strings.Contains(arrows[i], "<") {
				link(groups[i], groups[i-1])
			}
		}
		if !strings.Contains(line, "└") || len(groups) == 0 {
			continue
		}
		for x, r := range []rune(line) {
			if from := above(columns, x); (r == '└' || r == '┴') && from != "" && !slices.Contains(groups[0], from) {
				link([]string{from}, groups[0])
			}
		}
	}
	return found
}

// above is the name that stands over column x.
func above(columns map[string][]int, x int) string {
	for name, starts := range columns {
		for _, start := range starts {
			if x >= start && x < start+len([]rune(name)) {
				return name
			}
		}
	}
	return ""
}
