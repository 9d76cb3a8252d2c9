package harness

// Verdict says whether a target is met. It never fails a run: times are the machine's as much as the program's.
type Verdict string

const (
	Met         Verdict = "met"
	NotMet      Verdict = "NOT met"
	NotMeasured Verdict = "not measured"
)

// Target is a promise, and what was measured of it.
type Target struct {
	Name     string  `json:"name"`
	Unit     string  `json:"unit"`
	Measured float64 `json:"measured"`
	Bound    float64 `json:"bound"`
	AtLeast  bool    `json:"at_least"` // the bound is a lower one
	Verdict  Verdict `json:"verdict"`
}

// AtMost is a target with an upper bound; ok says whether the value was measured at all.
func AtMost(name, unit string, value, bound float64, ok bool) Target {
	return judge(Target{Name: name, Unit: unit, Measured: value, Bound: bound}, ok)
}

// AtLeast is a target with a lower bound.
func AtLeast(name, unit string, value, bound float64, ok bool) Target {
	return judge(Target{Name: name, Unit: unit, Measured: value, Bound: bound, AtLeast: true}, ok)
}

// RatioAtMost is a target for the ratio of two contenders' medians.
func RatioAtMost(name string, g Group, contender, base string, bound float64) Target {
	a, okA := g.Median(contender)
	b, okB := g.Median(base)
	ok := okA && okB && b > 0
	if !ok {
		a, b = 0, 1
	}
	return AtMost(name, "×", Ratio(a, b), bound, ok)
}

func judge(t Target, ok bool) Target {
	switch {
	case !ok:
		t.Verdict = NotMeasured
	case t.AtLeast && t.Measured >= t.Bound, !t.AtLeast && t.Measured <= t.Bound:
		t.Verdict = Met
	default:
		t.Verdict = NotMet
	}
	return t
}

func (t Target) measured() string {
	if t.Verdict == NotMeasured {
		return "–"
	}
	return Number(t.Measured) + " " + t.Unit
}

func (t Target) bound() string {
	sign := "≤ "
	if t.AtLeast {
		sign = "≥ "
	}
	return sign + Number(t.Bound) + " " + t.Unit
}
