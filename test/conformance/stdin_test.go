package conformance

import (
	"bytes"
	"context"
	"encoding/base64"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(b) // never fails
	return b
}

func TestS1AMebibyteOfInputIsReadWhole(t *testing.T) {
	t.Parallel()
	sb := box(t)
	data := noise(1 << 20)
	t.Run("as text", func(t *testing.T) {
		sb.In(t).MustSay("1048576\n", "wc -c", fields{"stdin": strings.Repeat("x", 1<<20)})
	})
	t.Run("as base64", func(t *testing.T) {
		got := sb.In(t).Must("sha256sum", fields{"stdin_base64": base64.StdEncoding.EncodeToString(data)})
		if !strings.HasPrefix(got, testkit.Digest(data)) {
			t.Errorf("digest %q", got)
		}
	})
	t.Run("over a WebSocket", func(t *testing.T) {
		sb := sb.In(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		w := sb.Dial(ctx, "/exec")
		if err := w.Start(ctx, "sha256sum"); err != nil {
			t.Fatal(err)
		}
		if err := w.Stdin(ctx, data); err != nil {
			t.Fatal(err)
		}
		if err := w.Send(ctx, fields{"type": "close_stdin"}); err != nil {
			t.Fatal(err)
		}
		var tr testkit.Transcript
		if _, err := w.Collect(ctx, &tr, nil); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(tr.Stdout), testkit.Digest(data)) {
			t.Errorf("digest %q", tr.Stdout)
		}
	})
	t.Run("sixteen mebibytes, echoed while they are sent", func(t *testing.T) {
		sb := sb.In(t)
		big := noise(16 << 20)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		w := sb.Dial(ctx, "/exec")
		if err := w.Start(ctx, "cat"); err != nil {
			t.Fatal(err)
		}
		sent := make(chan error, 1)
		go func() {
			err := w.Stdin(ctx, big)
			if err == nil {
				err = w.Send(ctx, fields{"type": "close_stdin"})
			}
			sent <- err
		}()
		var tr testkit.Transcript
		_, err := w.Collect(ctx, &tr, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(tr.Stdout, big) {
			t.Errorf("%d bytes came back of %d, gaps %v", len(tr.Stdout), len(big), tr.Gaps)
		}
	})
}

func TestS1InputThatNobodyReadsDoesNotHang(t *testing.T) {
	t.Parallel()
	sb := box(t)
	input := fields{"stdin": strings.Repeat("x", 4<<20)}
	for command, want := range map[string]string{"true": "", "head -c 3": "xxx", "exec <&-; echo closed": "closed\n"} {
		if out := sb.X(command, input); !out.OK || out.Stdout != want {
			t.Errorf("%s: %+v", command, out)
		}
	}
}

func TestS1ZeroBytesAndLineEndsOfInputAreKept(t *testing.T) {
	t.Parallel()
	sb := box(t)
	for _, in := range []string{"a\x00b", "\r\n\r", "\x04\x03", "ü日本😀", ""} {
		out := sb.X("cat", fields{"stdin": in, "encoding": "base64"})
		if string(out.StdoutBase64) != in {
			t.Errorf("input %q came back as %q", in, out.StdoutBase64)
		}
	}
}

func TestS3WithoutInputThereIsAnEndOfFileAtOnce(t *testing.T) {
	t.Parallel()
	sb := box(t)
	for command, want := range map[string]string{
		`cat; echo done`:                       "done\n",
		`read x; echo "$?"`:                    "1\n",
		`wc -c`:                                "0\n",
		`sh -c 'cat'; echo done`:               "done\n",
		`test -t 0 && echo tty || echo no tty`: "no tty\n",
		`readlink /proc/self/fd/0 >/dev/null; echo ok`: "ok\n",
	} {
		begun := time.Now()
		if out := sb.X(command); out.Stdout != want {
			t.Errorf("%s: %+v", command, out)
		}
		if took := time.Since(begun); took > 30*time.Second {
			t.Errorf("%s took %v", command, took)
		}
		if tr := sb.Stream(command); string(tr.Stdout) != want {
			t.Errorf("%s, streamed: %q", command, tr.Stdout)
		}
	}
}

func TestS5AHereDocumentIsWrittenAndTheNextCommandRuns(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.Must("cat > f <<'EOF'\nline one\n$HOME `id` \\n\n\n\tfour\nEOF")
	sb.MustSay("line one\n$HOME `id` \\n\n\n\tfour\n", "cat f")
	sb.MustSay("a\nb\nafter\n", "cat <<EOF | sort\nb\na\nEOF\necho after")
	sb.MustSay("one\ntwo\n", "echo one\n\n# a comment\necho two\n")
}
