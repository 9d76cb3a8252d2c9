package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestASummaryHoldsMedianMinAndMax(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		want    Summary
	}{
		{nil, Summary{}},
		{[]float64{7}, Summary{1, 7, 7, 7}},
		{[]float64{9, 1, 5}, Summary{3, 5, 1, 9}},
		{[]float64{10, 1, 4, 2}, Summary{4, 3, 1, 10}},
		{[]float64{1, 1, 1, 1000}, Summary{4, 1, 1, 1000}},
	} {
		before := slices.Clone(c.samples)
		if got := Summarize(c.samples); got != c.want {
			t.Errorf("%v: got %+v, want %+v", c.samples, got, c.want)
		}
		if !slices.Equal(before, c.samples) {
			t.Errorf("the samples %v were reordered to %v", before, c.samples)
		}
	}
	if !math.IsNaN(Ratio(1, 0)) || Ratio(3, 2) != 1.5 {
		t.Error("ratio")
	}
}

func TestSamplesAreTakenInTurnAndTheWarmUpIsThrownAway(t *testing.T) {
	var order []string
	contender := func(name string, base float64) Contender {
		n := base
		return Contender{Name: name, Sample: func(context.Context) (float64, error) {
			order = append(order, name)
			n++
			return n, nil
		}, After: func(context.Context) error {
			order = append(order, strings.ToLower(name))
			return nil
		}}
	}
	got := Interleave(t.Context(), Plan{Rounds: 2, Budget: time.Hour, Warmup: true}, []Contender{contender("A", 0), contender("B", 100)})
	if want := "A a B b A a B b A a B b"; strings.Join(order, " ") != want {
		t.Errorf("order %v, want %s", order, want)
	}
	if !slices.Equal(got[0].Samples, []float64{2, 3}) || !slices.Equal(got[1].Samples, []float64{102, 103}) {
		t.Errorf("samples %v and %v", got[0].Samples, got[1].Samples)
	}
	if got[1].Median != 102.5 || got[1].N != 2 {
		t.Errorf("summary %+v", got[1].Summary)
	}
}

func TestAContenderThatFailsIsLeftOutAndTheOthersGoOn(t *testing.T) {
	calls := 0
	flaky := Contender{Name: "flaky", Sample: func(context.Context) (float64, error) {
		if calls++; calls == 2 {
			return 0, errors.New("broke")
		}
		return 1, nil
	}}
	messy := Contender{Name: "messy", Sample: func(context.Context) (float64, error) { return 1, nil },
		After: func(context.Context) error { return errors.New("cannot clean up") }}
	good := Contender{Name: "good", Sample: func(context.Context) (float64, error) { return 2, nil }}
	got := Interleave(t.Context(), Plan{Rounds: 5, Budget: time.Hour}, []Contender{flaky, messy, good})
	if got[0].N != 1 || got[0].Fault != "broke" || calls != 2 {
		t.Errorf("flaky: %+v after %d calls", got[0], calls)
	}
	if got[1].N != 0 || got[1].Fault != "cannot clean up" {
		t.Errorf("messy: %+v", got[1])
	}
	if got[2].N != 5 || got[2].Fault != "" {
		t.Errorf("good: %+v", got[2])
	}
}

func TestTheBudgetEndsTheRoundsButNotBeforeTheLeast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := Contender{Name: "slow", Sample: func(context.Context) (float64, error) {
			time.Sleep(time.Second) // the bubble's clock
			return 1, nil
		}}
		if got := Interleave(t.Context(), Plan{Rounds: 100, Budget: 4500 * time.Millisecond, Least: 1}, []Contender{slow}); got[0].N != 5 {
			t.Errorf("%d samples of a second each within 4.5 s, the last begun before the end", got[0].N)
		}
		if got := Interleave(t.Context(), Plan{Rounds: 100, Least: 3}, []Contender{slow}); got[0].N != 3 {
			t.Errorf("%d samples without a budget, want the least of 3", got[0].N)
		}
	})
}

func TestAnEndedContextIsNoSample(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := Contender{Name: "cut", Sample: func(context.Context) (float64, error) {
		cancel()
		return 0, errors.New("killed")
	}}
	never := Contender{Name: "never", Sample: func(context.Context) (float64, error) {
		t.Error("sampled after the end")
		return 0, nil
	}}
	for _, s := range Interleave(ctx, Plan{Rounds: 3, Budget: time.Hour}, []Contender{c, never}) {
		if s.N != 0 || !strings.Contains(s.Fault, "not measured") {
			t.Errorf("%+v", s)
		}
	}
}

func report() Report {
	g := Group{Name: "exec", Title: "exec of true", Unit: "ms", Base: "Cay", Notes: []string{"one sandbox each"}, Series: []Series{
		{Name: "Cay", Samples: []float64{10}, Summary: Summary{1, 10, 10, 10}},
		{Name: "other|one", Samples: []float64{25}, Summary: Summary{1, 25, 20, 150}},
		Absent("podman", "not on this machine\ndetails"),
	}}
	return Report{Machine: map[string]int{"cores": 2}, Groups: []Group{g}, Targets: []Target{
		RatioAtMost("Cay beside other", g, "Cay", "other|one", 0.5),
		RatioAtMost("Cay beside podman", g, "Cay", "podman", 0.5),
		AtMost("memory", "MB", 61, 60, true),
		AtLeast("throughput", "MB/s", 100, 100, true),
	}}
}

func TestTheTableShowsRatiosFaultsAndVerdicts(t *testing.T) {
	var b bytes.Buffer
	if err := report().Markdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"### exec of true (ms)",
		"| | median | min | max | n | × Cay |\n|---|---:|---:|---:|---:|---:|",
		"| Cay | 10.0 | 10.0 | 10.0 | 1 | 1.00 |",
		`| other\|one | 25.0 | 20.0 | 150 | 1 | 2.50 |`,
		"- one sandbox each\n- podman: not on this machine\n",
		"| Cay beside other | 0.40 × | ≤ 0.50 × | met |",
		"| Cay beside podman | – | ≤ 0.50 × | not measured |",
		"| memory | 61.0 MB | ≤ 60.0 MB | NOT met |",
		"| throughput | 100 MB/s | ≥ 100 MB/s | met |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "| podman |") {
		t.Error("a row for what was not measured")
	}
}

func TestTheJSONKeepsEverySample(t *testing.T) {
	var b bytes.Buffer
	if err := report().JSON(&b); err != nil {
		t.Fatal(err)
	}
	var back struct {
		Machine map[string]int
		Groups  []struct {
			Unit   string
			Series []struct {
				Name, Fault string
				Samples     []float64
				Median      float64
			}
		}
		Targets []struct{ Verdict string }
	}
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	s := back.Groups[0].Series
	if back.Machine["cores"] != 2 || back.Groups[0].Unit != "ms" || s[1].Median != 25 || s[1].Samples[0] != 25 || s[2].Fault == "" || back.Targets[2].Verdict != "NOT met" {
		t.Errorf("%s", b.String())
	}
}

func TestNumbersKeepThreeDigits(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.123: "0.12", 9.876: "9.88", 10: "10.0", 99.94: "99.9", 123.4: "123", -50: "-50.0", math.Inf(1): "+Inf"} {
		if got := Number(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
	if Number(math.NaN()) != "–" {
		t.Error("NaN")
	}
}
