package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
)

// Group is one table: contenders measured in one unit.
type Group struct {
	Name  string `json:"name"` // a word, for the JSON
	Title string `json:"title"`
	Unit  string `json:"unit"`
	// Base is the contender that the others are put in relation to; without samples of it no ratios are printed.
	Base   string   `json:"base,omitempty"`
	Series []Series `json:"series"`
	Notes  []string `json:"notes,omitempty"`
}

// Median is the median of a contender; ok is false when it has no samples.
func (g Group) Median(name string) (median float64, ok bool) {
	for _, s := range g.Series {
		if s.Name == name && s.N > 0 {
			return s.Median, true
		}
	}
	return 0, false
}

// Report is all of a run.
type Report struct {
	Machine any      `json:"machine"`
	Groups  []Group  `json:"groups"`
	Targets []Target `json:"targets"`
}

// Group finds a group by its name; one that was not measured is empty.
func (r Report) Group(name string) Group {
	for _, g := range r.Groups {
		if g.Name == name {
			return g
		}
	}
	return Group{Name: name}
}

// JSON writes the report for machines.
func (r Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Markdown writes the tables for people, in GitHub's dialect.
func (r Report) Markdown(w io.Writer) error {
	var b strings.Builder
	for _, g := range r.Groups {
		g.markdown(&b)
	}
	if len(r.Targets) > 0 {
		b.WriteString("### Targets\n\n| target | measured | bound | |\n|---|---:|---:|---|\n")
		for _, t := range r.Targets {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", cell(t.Name), t.measured(), t.bound(), t.Verdict)
		}
		b.WriteString("\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (g Group) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "### %s (%s)\n\n", g.Title, g.Unit)
	base, hasBase := g.Median(g.Base)
	ratioHead, rule := "", "|---|---:|---:|---:|---:|"
	if hasBase {
		ratioHead, rule = fmt.Sprintf(" × %s |", cell(g.Base)), rule+"---:|"
	}
	fmt.Fprintf(b, "| | median | min | max | n |%s\n%s\n", ratioHead, rule)
	var faults []string
	for _, s := range g.Series {
		if s.Fault != "" {
			faults = append(faults, fmt.Sprintf("%s: %s", s.Name, firstLine(s.Fault)))
		}
		if s.N == 0 {
			continue
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %d |", cell(s.Name), Number(s.Median), Number(s.Min), Number(s.Max), s.N)
		if hasBase {
			fmt.Fprintf(b, " %.2f |", Ratio(s.Median, base))
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	for _, note := range append(g.Notes, faults...) {
		fmt.Fprintf(b, "- %s\n", note)
	}
	if len(g.Notes)+len(faults) > 0 {
		b.WriteString("\n")
	}
}

// Number prints v with three digits that count.
func Number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case a >= 100 || a == 0:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// cell keeps text from ending a table's cell.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
