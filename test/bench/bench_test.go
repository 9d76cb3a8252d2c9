package main

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/cayhq/cay/test/bench/harness"
	"github.com/cayhq/cay/test/bench/peer"
)

func TestEventsAreCountedByWhatTheyStandFor(t *testing.T) {
	var b strings.Builder
	b.WriteString("event: start\ndata: {\"process_id\":\"prc_1\",\"offset\":0}\n\n: a comment\n\n")
	total := 0
	for _, n := range []int{1, 2, 3, 100_000} {
		fmt.Fprintf(&b, "id: 9\nevent: stdout\ndata: {\"data_base64\":\"%s\"}\n\n", base64.StdEncoding.EncodeToString(make([]byte, n)))
		total += n
	}
	whole := b.String()
	read := func(s string) (int64, error) { return countEvents(bufio.NewReaderSize(strings.NewReader(s), 1<<20)) }
	if n, err := read(whole + "event: exit\ndata: {}\n\n"); err != nil || n != int64(total) {
		t.Errorf("%d bytes of %d, %v", n, total, err)
	}
	if _, err := read(whole); !errors.Is(err, io.EOF) {
		t.Errorf("a stream without an exit: %v", err)
	}
	for _, event := range []string{"gap", "error"} {
		if _, err := read(whole + "event: " + event + "\ndata: {}\n\nevent: exit\ndata: {}\n\n"); err == nil {
			t.Errorf("a stream with an event %s passed for a sample", event)
		}
	}
	if _, err := read("event: stdout\ndata: {\"data\":\"x\"}\n\n"); !errors.Is(err, errNoData) {
		t.Errorf("an event without data_base64: %v", err)
	}
}

func TestControlMessagesEndAStreamOrFailIt(t *testing.T) {
	for text, want := range map[string]struct{ done, fails bool }{
		`{"type":"started","process_id":"prc_1"}`:   {},
		`{"type":"exit","ok":true}`:                 {done: true},
		`{"type":"exit","ok":false,"exit_code":1}`:  {done: true, fails: true},
		`{"type":"error","reason":"slow_consumer"}`: {fails: true},
		`{"type":"gap","bytes":5}`:                  {fails: true},
		`not JSON`:                                  {fails: true},
	} {
		if done, err := ended([]byte(text)); done != want.done || (err != nil) != want.fails {
			t.Errorf("%s: %v, %v", text, done, err)
		}
	}
}

func TestProcFilesAreUnderstood(t *testing.T) {
	if n, err := parsePSS("00400000-7ff [rollup]\nRss:    900 kB\nPss:    512 kB\nPss_Anon: 3 kB\n"); err != nil || n != 512<<10 {
		t.Errorf("pss %d, %v", n, err)
	}
	if _, err := parsePSS("Rss: 1 kB\n"); err == nil {
		t.Error("a rollup without Pss")
	}
	if n := parseTicks([]byte("12 (a) b) c) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0")); n != 42 {
		t.Errorf("%d ticks", n)
	}
	if n := parseTicks([]byte("12 (cut) S 1")); n != 0 {
		t.Errorf("%d ticks in a cut line", n)
	}
	if m := cpuModel(bufio.NewScanner(strings.NewReader("processor\t: 0\nmodel name\t: A: B\n"))); m != "A: B" {
		t.Errorf("model %q", m)
	}
}

func TestTheModeOfCgroupsIsTold(t *testing.T) {
	for want, there := range map[string][]string{
		"v2": {"cgroup.controllers"}, "hybrid": {"memory", "unified/cgroup.controllers"}, "v1": {"memory", "cpu"}, "none": nil,
	} {
		got := cgroupMode(func(path string) (os.FileInfo, error) {
			for _, p := range there {
				if path == "/sys/fs/cgroup/"+p {
					return nil, nil
				}
			}
			return nil, fs.ErrNotExist
		})
		if got != want {
			t.Errorf("with %v: %s, want %s", there, got, want)
		}
	}
}

func group(name string, medians map[string]float64) harness.Group {
	g := harness.Group{Name: name}
	for contender, v := range medians {
		g.Series = append(g.Series, harness.NewSeries(contender, []float64{v}))
	}
	return g
}

func TestTargetsAreJudgedByTheMedians(t *testing.T) {
	r := harness.Report{Groups: []harness.Group{
		group("exec", map[string]float64{cayAPI: 30, peer.AgentName: 21, runscExec: 75, dockerExec: 44}),
		group("boot", map[string]float64{coldReady: 400, runscRun: 300}),
		group("stream", map[string]float64{cayWebSocket: 60, runscExec: 110}),
		group("code", map[string]float64{codeInContext: 9, peer.NativeName: 12}),
		group("code-first", map[string]float64{firstCode: 140, firstExec: 100}),
		group("pause", map[string]float64{cayPause: 20, cayResume: 9}),
		group("idle", map[string]float64{idleCay: 50}),
		group(flatGrowth, map[string]float64{"node": 65}),
	}}
	want := map[string]harness.Verdict{
		execPromise: harness.Met, overRunsc: harness.Met, overDocker: harness.NotMet, bootPromise: harness.NotMet, streamPromise: harness.Met, idlePromise: harness.Met,
		resumePromise: harness.Met, codePromise: harness.Met, firstPromise: harness.NotMet,
		growthPromised + "node": harness.NotMet,
	}
	got := targets(r)
	for _, target := range got {
		if target.Verdict != want[target.Name] {
			t.Errorf("%s: %+v, want %s", target.Name, target, want[target.Name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d targets of %d", len(got), len(want))
	}
}

func TestASlowMachineIsHeldToHalfOfRunscsStream(t *testing.T) {
	bound := func(medians map[string]float64) float64 {
		return targets(harness.Report{Groups: []harness.Group{group("stream", medians)}})[0].Bound
	}
	if got := bound(map[string]float64{cayWebSocket: 1, runscExec: 80}); got != 40 {
		t.Errorf("bound %v on a slow machine", got)
	}
	if got := bound(map[string]float64{cayWebSocket: 1, runscExec: 900}); got != 100 {
		t.Errorf("bound %v on a fast machine", got)
	}
	if got := bound(map[string]float64{cayWebSocket: 1}); got != 100 {
		t.Errorf("bound %v without runsc", got)
	}
}

func TestWhatWasNotMeasuredHasNoVerdict(t *testing.T) {
	got := targets(harness.Report{Groups: []harness.Group{group("exec", map[string]float64{cayAPI: 30})}})
	for _, target := range got {
		if target.Verdict != harness.NotMeasured {
			t.Errorf("%+v", target)
		}
	}
	if len(targets(harness.Report{})) != 0 {
		t.Error("targets of an empty run")
	}
}

func TestSettingsAreChecked(t *testing.T) {
	good := settings{streamMiB: 1, fileMiB: 1, only: "exec,files"}
	if err := good.check(nil); err != nil {
		t.Error(err)
	}
	if !good.wants("files") || good.wants("boot") || !(settings{}).wants("boot") {
		t.Error("the groups that are wanted")
	}
	for name, bad := range map[string]settings{
		"an unknown group": {streamMiB: 1, fileMiB: 1, only: "exec,none"},
		"an empty stream":  {fileMiB: 1},
		"an empty file":    {streamMiB: 1},
	} {
		if bad.check(nil) == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if good.check([]string{"extra"}) == nil {
		t.Error("an argument was accepted")
	}
}

func TestAPercentileIsASample(t *testing.T) {
	var hundred []float64
	for n := range 100 {
		hundred = append(hundred, float64(100-n))
	}
	for p, want := range map[float64]float64{99: 99, 100: 100, 50: 50, 1: 1, 0: 1} {
		if got := percentile(hundred, p); got != want {
			t.Errorf("%v of 100: %v, want %v", p, got, want)
		}
	}
	if got := percentile([]float64{7}, 99); got != 7 {
		t.Errorf("of one: %v", got)
	}
}
