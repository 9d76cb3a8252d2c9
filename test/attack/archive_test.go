package attack

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/cayhq/cay/internal/testkit"
)

// packed is an archive that make writes, compressed by gzip.
func packed(t *testing.T, make func(w *tar.Writer) error) []byte {
	t.Helper()
	var out bytes.Buffer
	gz, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(gz)
	if err := make(w); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := gz.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// zeros is an endless file of nothing.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// zstdHead is a frame of zstd that asks for a window of that many bytes, a power of two, and then ends.
func zstdHead(log byte) []byte {
	return []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, (log - 10) << 3, 0x01, 0x00, 0x00}
}

// Defence: an archive is unpacked inside, within the sandbox's disk, inodes and memory; what it may ask of the decompressor is
// bounded; and it is all or nothing.
func TestAnArchiveThatGrowsFillsNothingButItsSandboxsDisk(t *testing.T) {
	const size = 1 << 30
	bombs := map[string]func(t *testing.T) []byte{
		"a file of 1 GiB": func(t *testing.T) []byte {
			return packed(t, func(w *tar.Writer) error {
				if err := w.WriteHeader(&tar.Header{Name: "a", Mode: 0o644, Size: size}); err != nil {
					return err
				}
				_, err := io.CopyN(w, zeros{}, size)
				return err
			})
		},
		"200000 files": func(t *testing.T) []byte {
			return packed(t, func(w *tar.Writer) error {
				for i := range 200_000 {
					if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("d/%d", i), Mode: 0o644}); err != nil {
						return err
					}
				}
				return nil
			})
		},
		"a window of 2 GiB": func(*testing.T) []byte { return zstdHead(31) },
		"a name of 1 MiB": func(t *testing.T) []byte {
			return packed(t, func(w *tar.Writer) error {
				return w.WriteHeader(&tar.Header{Name: strings.Repeat("a/", 300_000), Typeflag: tar.TypeDir, Mode: 0o755, Format: tar.FormatGNU})
			})
		},
		"zeros without end": func(t *testing.T) []byte {
			var out bytes.Buffer
			w, err := zstd.NewWriter(&out, zstd.WithEncoderLevel(zstd.SpeedFastest))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.CopyN(w, zeros{}, size); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			return out.Bytes()
		},
	}
	a := newArena(t, len(bombs), fields{"disk_gb": 0.25, "memory_mb": 256})
	bodies := map[string][]byte{}
	for name, bomb := range bombs {
		bodies[name] = bomb(t)
	}
	a.within(t, func() {
		var attacking sync.WaitGroup
		attackers := a.attackers
		for name, body := range bodies {
			sb := attackers[0]
			attackers = attackers[1:]
			attacking.Go(func() {
				resp, err := a.explode(t.Context(), sb, body)
				t.Logf("%s, %d bytes packed: %v", name, len(body), resp)
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				// zeros alone are an empty archive, to which nothing is added
				if resp.Status/100 == 2 && name != "zeros without end" || resp.Status >= 500 && resp.Status != 507 {
					t.Errorf("%s: %v", name, resp)
				}
			})
		}
		attacking.Wait()
	})
}

// explode uploads an archive that is not to be written, and checks that nothing of it is left and that the sandbox can be used.
func (a *arena) explode(ctx context.Context, sb *testkit.Sandbox, body []byte) (testkit.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	resp, err := a.inst.Do(ctx, "PUT", sb.Path("/archive?path="+url.QueryEscape("/workspace/bomb")), body)
	if err != nil {
		return resp, err
	}
	now, err := a.inst.GetSandbox(ctx, sb.ID)
	if err != nil {
		return resp, err
	}
	if now.Status != "READY" {
		return resp, fmt.Errorf("the sandbox is %s %s", now.Status, now.StatusReason)
	}
	out, err := a.inst.Exec(ctx, sb.ID, "find /workspace | wc -l; echo free > /workspace/free && cat /workspace/free")
	if err != nil {
		return resp, err
	}
	if resp.Status/100 != 2 && out.Stdout != "1\nfree\n" {
		return resp, fmt.Errorf("afterwards: %+v", out)
	}
	return resp, nil
}

// Defence: an archive is unpacked in a staging directory with nothing of the sandbox in it, and every step down is opened without
// following symlinks; the node has no part in it.
func TestAnArchiveCannotLeaveItsPathWhateverTheGuestDoesMeanwhile(t *testing.T) {
	t.Parallel()
	sb := testkit.Server(t).Create(t)
	sb.RequireProgram("python3")
	sb.Must("mkdir -p /tmp/outside && chmod 777 /tmp/outside")
	// The guest swaps directories of the target for symlinks as fast as it can.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stream, _ := sb.Open(ctx, []string{"python3", "-c", `
import os
os.makedirs('/workspace/t/a', exist_ok=True)
while True:
    try:
        for name in os.listdir('/workspace/t'):
            p = '/workspace/t/' + name
            if os.path.isdir(p) and not os.path.islink(p):
                os.rename(p, '/tmp/moved-' + os.urandom(4).hex()); os.symlink('/tmp/outside', p)
            elif os.path.islink(p): os.unlink(p); os.mkdir(p)
    except OSError: pass
`}, fields{"timeout_seconds": 100, "kill_on_disconnect": true})
	body := packed(t, func(w *tar.Writer) error {
		for i := range 200 {
			if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("a/b%d/leak%d", i%7, i), Mode: 0o644}); err != nil {
				return err
			}
		}
		return nil
	})
	for range 30 {
		resp := sb.Call("PUT", "/archive?path=/workspace/t", body)
		if resp.Status >= 500 {
			t.Errorf("%v", resp)
		}
	}
	stream.Close()
	if found := sb.Must("find /tmp/outside -name 'leak*' | head -3"); found != "" {
		t.Errorf("files came to lie outside: %s", found)
	}
}
