package cay_test

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/cayhq/cay"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// accounted is a sandbox of two cores that is accounted until a time.
func accounted(status cay.Status, until time.Time) cay.Sandbox {
	return cay.Sandbox{Status: status, ReadyAt: noon, LastActiveAt: noon, AccountedAt: until, Spec: cay.SandboxSpec{CPU: 2, MemoryMB: 100, DiskGB: 4}}
}

func TestOnlyTheTimeInWhichASandboxIsReadyOrPausedCounts(t *testing.T) {
	for status, want := range map[cay.Status]cay.UsageAmounts{
		cay.Creating: {}, cay.Terminating: {}, cay.Terminated: {}, cay.Failed: {},
		cay.Ready:  {RunningSeconds: 10, AllocatedCPUSeconds: 20, AllocatedMemoryMBSeconds: 1000, AllocatedDiskGBSeconds: 40},
		cay.Paused: {PausedSeconds: 10, AllocatedMemoryMBSeconds: 1000, AllocatedDiskGBSeconds: 40},
	} {
		before, after := accounted(status, noon), accounted(cay.Terminated, noon.Add(10*time.Second))
		days := cay.Accrue(&before, &after)
		if want.Zero() != (len(days) == 0) || len(days) > 0 && days[0].UsageAmounts != want {
			t.Errorf("%s: %+v, want %+v", status, days, want)
		}
	}
}

func TestUsageGoesToTheDayThatItIsOf(t *testing.T) {
	midnight := noon.Add(12 * time.Hour)
	for name, test := range map[string]struct {
		from, to time.Time
		want     []float64 // seconds of each day
	}{
		"up to midnight":         {noon, midnight, []float64{12 * 3600}},
		"from midnight on":       {midnight, midnight.Add(time.Hour), []float64{3600}},
		"over midnight":          {midnight.Add(-time.Microsecond), midnight.Add(time.Second), []float64{1e-6, 1}},
		"over two":               {noon, noon.Add(48 * time.Hour), []float64{12 * 3600, 24 * 3600, 12 * 3600}},
		"in another zone":        {noon.In(time.FixedZone("", 13*3600)), midnight.Add(time.Hour), []float64{12 * 3600, 3600}},
		"a clock that went back": {noon, noon.Add(-time.Hour), nil},
	} {
		before, after := accounted(cay.Ready, test.from), accounted(cay.Ready, test.to)
		days := cay.Accrue(&before, &after)
		if len(days) != len(test.want) {
			t.Errorf("%s: %+v", name, days)
			continue
		}
		for i, want := range test.want {
			if math.Abs(days[i].RunningSeconds-want) > 1e-9 || !days[i].Day.Equal(noon.Truncate(24*time.Hour).AddDate(0, 0, i+days[0].Day.YearDay()-noon.YearDay())) {
				t.Errorf("%s: day %d is %+v, want %v s", name, i, days[i], want)
			}
		}
	}
}

func TestWhatWasMeasuredWithoutTimeCountsOnItsDayAndNeverLess(t *testing.T) {
	before := accounted(cay.Ready, noon)
	after := before
	after.Usage = cay.Usage{CPUSeconds: 2, MemoryMBSeconds: 3, EgressBytes: 4}
	if days := cay.Accrue(&before, &after); len(days) != 1 || !days[0].Day.Equal(noon.Truncate(24*time.Hour)) || days[0].UsageAmounts != (cay.UsageAmounts{CPUSeconds: 2, MemoryMBSeconds: 3, EgressBytes: 4}) {
		t.Errorf("%+v", days)
	}
	if days := cay.Accrue(&after, &before); days != nil {
		t.Errorf("figures that shrink account %+v", days)
	}
	never := cay.Sandbox{Status: cay.Creating, CreatedAt: noon}
	failed := never
	failed.Status, failed.EndedAt, failed.Usage.CPUSeconds = cay.Failed, noon.Add(24*time.Hour), 1
	if days := cay.Accrue(&never, &failed); len(days) != 1 || !days[0].Day.Equal(noon.Truncate(24*time.Hour).AddDate(0, 0, 1)) {
		t.Errorf("a boot that failed accounts %+v", days)
	}
}

func TestSplittingOverMidnightsLosesNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		from := noon.Add(time.Duration(rapid.Int64Range(0, int64(48*time.Hour)).Draw(rt, "from")))
		whole := time.Duration(rapid.Int64Range(0, int64(200*time.Hour)).Draw(rt, "for"))
		before, after := accounted(cay.Ready, from), accounted(cay.Ready, from.Add(whole))
		after.Usage = cay.Usage{CPUSeconds: rapid.Float64Range(0, 1e6).Draw(rt, "cpu"), EgressBytes: rapid.Int64Range(0, 1<<40).Draw(rt, "egress")}
		var sum cay.UsageAmounts
		last := time.Time{}
		for _, d := range cay.Accrue(&before, &after) {
			if !d.Day.After(last) || d.Day.Truncate(24*time.Hour) != d.Day || d.RunningSeconds > 86400+1e-6 {
				rt.Fatalf("after %v comes %+v", last, d)
			}
			sum.Add(d.UsageAmounts)
			last = d.Day
		}
		if math.Abs(sum.RunningSeconds-whole.Seconds()) > 1e-6 || math.Abs(sum.CPUSeconds-after.Usage.CPUSeconds) > 1e-6 || sum.EgressBytes != after.Usage.EgressBytes {
			rt.Fatalf("%v with %+v sums up to %+v", whole, after.Usage, sum)
		}
	})
}

func TestAccountingNeverGoesBackAndBeginsWithReady(t *testing.T) {
	sb := cay.Sandbox{Status: cay.Creating}
	step := func(to cay.Status, at, want time.Time) {
		t.Helper()
		if err := sb.Transition(to, "", at); err != nil {
			t.Fatal(err)
		}
		if !sb.AccountedAt.Equal(want) {
			t.Errorf("%s at %v: accounted until %v, want %v", to, at, sb.AccountedAt, want)
		}
	}
	step(cay.Ready, noon, noon)
	step(cay.Paused, noon.Add(-time.Second), noon)
	step(cay.Ready, noon.Add(time.Second), noon.Add(time.Second))
	step(cay.Terminating, noon.Add(time.Minute), noon.Add(time.Minute))
	step(cay.Terminated, noon.Add(time.Hour), noon.Add(time.Hour))
	sb = cay.Sandbox{Status: cay.Creating}
	step(cay.Failed, noon, time.Time{})
}

func TestClipKeepsWholeCharactersWithinItsBound(t *testing.T) {
	for _, test := range []struct {
		s    string
		n    int
		want string
	}{{"abc", 3, "abc"}, {"abc", 2, "ab"}, {"aü", 2, "a"}, {"aü", 3, "aü"}, {"日本", 5, "日"}, {"日", 2, ""}, {"", 0, ""}, {"\x80\x80", 1, ""}} {
		if got := cay.Clip(test.s, test.n); got != test.want {
			t.Errorf("%q clipped to %d is %q, want %q", test.s, test.n, got, test.want)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		s, n := rapid.String().Draw(rt, "s"), rapid.IntRange(0, 40).Draw(rt, "n")
		got := cay.Clip(s, n)
		if !utf8.ValidString(got) || !strings.HasPrefix(s, got) || len(got) > n || len(s) > n && len(got) < n-3 {
			rt.Fatalf("%q clipped to %d is %q", s, n, got)
		}
	})
}
