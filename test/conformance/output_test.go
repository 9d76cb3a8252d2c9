package conformance

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cayhq/cay/internal/testkit"
)

func TestO1ACharacterCutBetweenTwoReadsArrivesWhole(t *testing.T) {
	t.Parallel()
	sb := box(t)
	for name, c := range map[string]struct{ command, want string }{
		"two bytes":              {`printf 'caf\303'; sleep .3; printf '\251\n'`, "café\n"},
		"three bytes one by one": {`printf '\346'; sleep .2; printf '\227'; sleep .2; printf '\245'`, "日"},
		"four bytes":             {`printf 'x\360\237'; sleep .2; printf '\230\200y'`, "x😀y"},
		"other stream between":   {`printf 'caf\303'; sleep .2; printf mid >&2; sleep .2; printf '\251\n'`, "café\n"},
	} {
		t.Run(name, func(t *testing.T) {
			sb := sb.In(t)
			if got := sb.Must(c.command); got != c.want {
				t.Errorf("result %q, want %q", got, c.want)
			}
			tr := sb.Stream(c.command)
			if string(tr.Stdout) != c.want || tr.Exit.Lossy.Stdout {
				t.Errorf("stream %q (lossy %v), want %q", tr.Stdout, tr.Exit.Lossy.Stdout, c.want)
			}
		})
	}
}

func TestO1ACharacterThatIsNeverFinishedIsLossyAndNotLost(t *testing.T) {
	t.Parallel()
	sb := box(t)
	out := sb.X(`printf 'caf\303'`)
	if out.Stdout != "caf\uFFFD" || !out.Lossy.Stdout || out.StdoutSize != 4 {
		t.Errorf("result %+v", out)
	}
	tr := sb.Stream(`printf 'caf\303'`)
	if string(tr.Stdout) != "caf\uFFFD" || !tr.Exit.Lossy.Stdout {
		t.Errorf("stream %q, lossy %v", tr.Stdout, tr.Exit.Lossy.Stdout)
	}
}

func TestO2LongTextOfWideCharactersIsByteExact(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.RequireProgram("python3")
	want := strings.Repeat("日本語", 60000) + "\n"
	command := `PYTHONIOENCODING=utf-8 python3 -c "print('日本語'*60000)"`
	if got := sb.Must(command); got != want {
		t.Errorf("result differs: %d bytes, want %d", len(got), len(want))
	}
	if tr := sb.Stream(command); string(tr.Stdout) != want || tr.Exit.Lossy.Stdout {
		t.Errorf("stream differs: %d bytes, want %d; lossy %v", len(tr.Stdout), len(want), tr.Exit.Lossy.Stdout)
	}
}

func TestO3BytesThatAreNoTextAreAnswered(t *testing.T) {
	t.Parallel()
	sb := box(t)
	for name, c := range map[string]struct{ printf, raw, text string }{
		"invalid bytes and a zero": {`\377\376\000ok`, "\xff\xfe\x00ok", "\uFFFD\uFFFD\x00ok"},
		"a surrogate":              {`a\355\240\200b`, "a\xed\xa0\x80b", "a\uFFFD\uFFFD\uFFFDb"},
		"an overlong slash":        {`\300\257`, "\xc0\xaf", "\uFFFD\uFFFD"},
	} {
		for _, stream := range []string{"stdout", "stderr"} {
			t.Run(name+" on "+stream, func(t *testing.T) {
				sb := sb.In(t)
				command := "printf '" + c.printf + "'"
				if stream == "stderr" {
					command += " >&2"
				}
				pick := func(out, err []byte) string {
					if stream == "stderr" {
						return string(err)
					}
					return string(out)
				}
				out := sb.X(command)
				lossy := out.Lossy.Stdout || out.Lossy.Stderr
				if got := pick([]byte(out.Stdout), []byte(out.Stderr)); got != c.text || !lossy {
					t.Errorf("as text %q, lossy %v; want %q", got, lossy, c.text)
				}
				out = sb.X(command, fields{"encoding": "base64"})
				if got := pick(out.StdoutBase64, out.StderrBase64); got != c.raw {
					t.Errorf("as base64 %q, want %q", got, c.raw)
				}
				tr := sb.Stream(command, fields{"encoding": "base64"})
				if got := pick(tr.Stdout, tr.Stderr); got != c.raw {
					t.Errorf("as a stream of base64 %q, want %q", got, c.raw)
				}
			})
		}
	}
}

func TestO3EveryByteValueIsExactInBase64AndOverAWebSocket(t *testing.T) {
	t.Parallel()
	sb := box(t)
	all := make([]byte, 256*64)
	for i := range all {
		all[i] = byte(i)
	}
	sb.Put("/tmp/all", all)
	if out := sb.X("cat /tmp/all", fields{"encoding": "base64"}); !bytes.Equal(out.StdoutBase64, all) {
		t.Errorf("base64 differs: %d bytes", len(out.StdoutBase64))
	}
	tr := socketExec(t, sb, "cat /tmp/all")
	if !bytes.Equal(tr.Stdout, all) {
		t.Errorf("WebSocket differs: %d bytes", len(tr.Stdout))
	}
}

func TestO4OutputPastTheLimitKeepsHeadAndTailAndTellsTheTrueSize(t *testing.T) {
	t.Parallel()
	const limit = 10 << 20
	sb := box(t)
	check := func(t *testing.T, text string, size int64, gap *testkit.Gap, truncated bool) {
		t.Helper()
		if !truncated || size != 20_000_004 {
			t.Fatalf("truncated %v, size %d", truncated, size)
		}
		if len(text) > limit || len(text) < limit*9/10 {
			t.Errorf("kept %d bytes of at most %d", len(text), limit)
		}
		if gap == nil || gap.Bytes+int64(len(text)) != size {
			t.Fatalf("gap %+v and %d kept bytes do not add up to %d", gap, len(text), size)
		}
		if strings.Trim(text[:gap.Offset], "A") != "" || gap.Offset < limit/4 {
			t.Errorf("the head of %d bytes is not the output's", gap.Offset)
		}
		if !strings.HasSuffix(text, "AEND\n") {
			t.Errorf("the tail ends with %q", text[max(0, len(text)-10):])
		}
	}
	t.Run("stdout", func(t *testing.T) {
		out := sb.In(t).X(`head -c 20000000 /dev/zero | tr '\0' A; echo END`)
		if out.ExitCode != 0 {
			t.Fatalf("exit code %d", out.ExitCode)
		}
		check(t, out.Stdout, out.StdoutSize, out.StdoutGap, out.Truncated.Stdout)
	})
	t.Run("stderr", func(t *testing.T) {
		out := sb.In(t).X(`{ head -c 20000000 /dev/zero | tr '\0' A; echo END; } >&2; echo fine`)
		if out.Stdout != "fine\n" || out.Truncated.Stdout {
			t.Errorf("stdout %q", out.Stdout)
		}
		check(t, out.Stderr, out.StderrSize, out.StderrGap, out.Truncated.Stderr)
	})
}

func TestO4ASmallLimitCutsBetweenCharacters(t *testing.T) {
	t.Parallel()
	sb := box(t)
	for _, limit := range []int{1, 10, 100, 1001} {
		out := sb.X(`for i in $(seq 400); do printf '日本'; done`, fields{"max_output_bytes": limit})
		if !out.Truncated.Stdout || out.StdoutSize != 2400 || len(out.Stdout) > limit || out.StdoutGap == nil {
			t.Fatalf("limit %d: %d bytes, size %d, truncated %v, gap %+v", limit, len(out.Stdout), out.StdoutSize, out.Truncated.Stdout, out.StdoutGap)
		}
		if out.Lossy.Stdout || strings.ContainsRune(out.Stdout, utf8.RuneError) {
			t.Errorf("limit %d: a character was cut: %q", limit, out.Stdout)
		}
		if out.StdoutGap.Bytes+int64(len(out.Stdout)) != out.StdoutSize {
			t.Errorf("limit %d: gap %+v and %d kept bytes do not add up to %d", limit, out.StdoutGap, len(out.Stdout), out.StdoutSize)
		}
	}
}

func TestO4AStreamDeliversMoreThanIsKept(t *testing.T) {
	t.Parallel()
	sb := box(t)
	tr := sb.Stream(`seq 1 20000`, fields{"max_output_bytes": 1000})
	if want := sequence(20000); string(tr.Stdout) != want {
		t.Errorf("%d bytes arrived, want %d; gaps %v", len(tr.Stdout), len(want), tr.Gaps)
	}
}

func TestO7OutputBeforeATimeoutIsReturned(t *testing.T) {
	t.Parallel()
	sb := box(t)
	for _, command := range []string{`printf partial; sleep 5`, `trap '' TERM INT HUP; printf partial; sleep 5; sleep 5`} {
		out := sb.X(command, fields{"timeout_seconds": 1})
		if out.Stdout != "partial" || !out.TimedOut || out.OK || out.Reason != "timeout" || out.ExitCode != 137 || out.Signal != "KILL" {
			t.Errorf("%s: %+v", command, out)
		}
		if out.DurationMS < 950 || out.DurationMS > 1500 {
			t.Errorf("%s: ended after %d ms, want 1000 to 1500", command, out.DurationMS)
		}
	}
	tr := sb.Stream(`printf partial; sleep 5`, fields{"timeout_seconds": 0.5})
	if string(tr.Stdout) != "partial" || !tr.Exit.TimedOut {
		t.Errorf("streamed: %q, %+v", tr.Stdout, tr.Exit)
	}
}

func TestO8StreamsAndExitCodeAreApart(t *testing.T) {
	t.Parallel()
	sb := box(t)
	const command = `printf out; printf err >&2; exit 7`
	out := sb.X(command)
	if out.Stdout != "out" || out.Stderr != "err" || out.ExitCode != 7 || out.OK || out.Reason != "exited" || out.Signal != "" {
		t.Errorf("result %+v", out)
	}
	tr := sb.Stream(command)
	if string(tr.Stdout) != "out" || string(tr.Stderr) != "err" || tr.Exit.ExitCode != 7 {
		t.Errorf("stream %+v", tr)
	}
	ws := socketExec(t, sb, command)
	if string(ws.Stdout) != "out" || string(ws.Stderr) != "err" || ws.Exit.ExitCode != 7 {
		t.Errorf("WebSocket %+v", ws)
	}
}

func TestO10EventStreamsKeepEveryByteOfText(t *testing.T) {
	t.Parallel()
	sb := box(t)
	for printf, want := range map[string]string{
		`a\n\n\nb\n\n`:                        "a\n\n\nb\n\n",
		`\n`:                                  "\n",
		`a\r\nb\rc\r\n\r`:                     "a\r\nb\rc\r\n\r",
		`  lead\n\ttab\n:colon\n`:             "  lead\n\ttab\n:colon\n",
		`data: x\n\nevent: exit\ndata:{}\n\n`: "data: x\n\nevent: exit\ndata:{}\n\n",
		`"\\q\001\033[1m\177`:                 "\"\\q\x01\x1b[1m\x7f",
		`\342\200\250x\342\200\251`:           "\u2028x\u2029",
		`\357\273\277bom`:                     "\uFEFFbom",
	} {
		if tr := sb.Stream("printf '" + printf + "'"); string(tr.Stdout) != want {
			t.Errorf("printf %s: %q, want %q", printf, tr.Stdout, want)
		}
	}
}

func TestO13ParallelCommandsGetTheirOwnExitCodes(t *testing.T) {
	t.Parallel()
	sb := box(t)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			out, err := sb.Client.Exec(t.Context(), sb.ID, []string{"sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i%256)})
			if err != nil || out.ExitCode != i%256 || out.Stdout != fmt.Sprintf("%d\n", i) {
				t.Errorf("command %d: exit code %d, stdout %q, %v", i, out.ExitCode, out.Stdout, err)
			}
		})
	}
	wg.Wait()
}

func TestO14AllOutputComesBeforeTheExit(t *testing.T) {
	t.Parallel()
	sb := box(t, fields{"cpu": 1})
	want := sequence(20000)
	work := make(chan int)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range work {
				tr, err := sb.StreamExec(t.Context(), sb.ID, "seq 1 20000") // fails for an event after the exit
				if err != nil || string(tr.Stdout) != want {
					t.Errorf("run %d: %d bytes, want %d: %v", i, len(tr.Stdout), len(want), err)
				}
			}
		})
	}
	for i := range testkit.Scaled(40, 100) {
		work <- i
	}
	close(work)
	wg.Wait()
}

func TestO14OutputWrittenRightBeforeTheExitIsNeverLost(t *testing.T) {
	t.Parallel()
	sb := box(t)
	for i := range 30 {
		out := sb.X(`printf a; printf b >&2; printf c | cat; kill -9 $$`)
		if out.Stdout != "ac" || out.Stderr != "b" || out.Signal != "KILL" {
			t.Fatalf("run %d: %+v", i, out)
		}
	}
}

func TestO14AChildThatHoldsThePipesDoesNotHoldTheExec(t *testing.T) {
	t.Parallel()
	sb := box(t)
	begun := time.Now()
	out := sb.X(`(sleep 200; echo late) & echo first`)
	if out.Stdout != "first\n" || out.ExitCode != 0 || time.Since(begun) > 100*time.Second {
		t.Fatalf("after %v: %+v", time.Since(begun), out)
	}
}

func TestO14WritingToAnEndedExecsPipesNeitherBlocksNorKills(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.MustSay("first\n", `(sleep 1; head -c 2000000 /dev/zero; echo $? > /tmp/late) & echo first`)
	testkit.Eventually(t, time.Minute, "the child writes on after its exec has ended", func() error {
		out, err := sb.Client.Exec(t.Context(), sb.ID, "cat /tmp/late")
		if err == nil && out.Stdout != "0\n" {
			err = fmt.Errorf("head's exit code: %q %q", out.Stdout, out.Stderr)
		}
		return err
	})
}

func TestO15MuchOutputCostsTheServerLittleMemory(t *testing.T) {
	testkit.RequireRoot(t)
	inst := testkit.StartServer(t, testkit.Options{Env: []string{"CAY_POOL_SIZE=0"}}) // of its own, to be measured alone
	sb := inst.Create(t)
	megabytes := testkit.Scaled(100, 500)
	timeFor := func(mb int) time.Duration {
		begun := time.Now()
		out := sb.X(fmt.Sprintf("yes | head -c %d", mb<<20), fields{"timeout_seconds": 170})
		if out.StdoutSize != int64(mb)<<20 || out.ExitCode != 0 || !out.Truncated.Stdout {
			t.Fatalf("%d MiB: size %d, exit code %d, truncated %v", mb, out.StdoutSize, out.ExitCode, out.Truncated.Stdout)
		}
		return time.Since(begun)
	}
	timeFor(20) // what is allocated once is not growth
	for _, role := range []testkit.Role{testkit.RoleServer, testkit.RoleNode} {
		pid, err := inst.PID(role)
		if err != nil {
			t.Fatal(err)
		}
		stop := testkit.WatchRSS(pid)
		defer func() {
			before, peak := stop()
			t.Logf("%s: %d MiB before, at most %d MiB", role, before>>20, peak>>20)
			if peak-before > 64<<20 {
				t.Errorf("%s grew by %d MiB", role, (peak-before)>>20)
			}
		}()
	}
	half, whole := timeFor(megabytes/2), timeFor(megabytes)
	if whole > 4*half+10*time.Second {
		t.Errorf("%d MiB took %v, half of it %v: not linear", megabytes, whole, half)
	}
}

func sequence(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

// socketExec runs a command over a WebSocket to its end.
func socketExec(t *testing.T, sb *testkit.Sandbox, command any, more ...fields) testkit.Transcript {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := sb.Dial(ctx, "/exec")
	if err := w.Start(ctx, command, more...); err != nil {
		t.Fatal(err)
	}
	if err := w.Send(ctx, fields{"type": "close_stdin"}); err != nil {
		t.Fatal(err)
	}
	var tr testkit.Transcript
	code, err := w.Collect(ctx, &tr, nil)
	if err != nil || tr.Exit == nil || code != 1000 {
		t.Fatalf("%v: closed with %d, %v, error %+v", command, code, err, tr.Error)
	}
	return tr
}
