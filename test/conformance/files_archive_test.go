package conformance

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// archivePath is the API's path of a sandbox's archive.
func archivePath(path string, more ...string) string {
	q := url.Values{"path": {path}}
	for n := 0; n+1 < len(more); n += 2 {
		q.Set(more[n], more[n+1])
	}
	return "/archive?" + q.Encode()
}

// entry is one of a tar made for a test.
type entry struct {
	tar.Header
	content string
}

func file(name, content string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}, content}
}

func symlink(name, target string) entry {
	return entry{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, ""}
}

func hardLink(name, target string) entry {
	return entry{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o644}, ""}
}

func special(flag byte, name string) entry {
	return entry{tar.Header{Typeflag: flag, Name: name, Mode: 0o666, Devmajor: 1, Devminor: 3}, ""}
}

func tarOf(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func gzipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

type archiveCounts struct {
	Files       int64 `json:"files"`
	Directories int64 `json:"directories"`
	Bytes       int64 `json:"bytes"`
	Skipped     int64 `json:"skipped"`
}

func putArchive(t *testing.T, sb *testkit.Sandbox, path string, data []byte, more ...string) archiveCounts {
	t.Helper()
	var counts archiveCounts
	if err := sb.Call("PUT", archivePath(path, more...), data).Decode(200, &counts); err != nil {
		t.Fatalf("upload an archive to %s: %v", path, err)
	}
	return counts
}

// untar reads a tar into its entries by name.
func untar(t *testing.T, r io.Reader) map[string]entry {
	t.Helper()
	entries := map[string]entry{}
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return entries
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		entries[h.Name] = entry{*h, string(content)}
	}
}

func getTar(t *testing.T, sb *testkit.Sandbox, path string, more ...string) map[string]entry {
	t.Helper()
	resp := sb.Call("GET", archivePath(path, append([]string{"format", "tar"}, more...)...), nil)
	if resp.Status != 200 {
		t.Fatalf("archive of %s: %v", path, resp)
	}
	return untar(t, bytes.NewReader(resp.Body))
}

func TestAnArchiveGoesBothWaysInEveryFormat(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.Must(`mkdir -p src/deep/er src/empty; printf one >src/a; head -c 300000 /dev/urandom >src/deep/big; printf run >src/deep/er/x; chmod 750 src/deep/er/x
		ln -s deep/big src/link; ln -s /etc/hostname src/absolute; ln src/a src/a2; mkfifo src/fifo; touch -d 2001-02-03T04:05:06Z src/a; chmod 700 src/empty; touch -d 2001-02-03T04:05:06Z src/empty`)
	for format, kind := range map[string]string{"tar": "application/x-tar", "tar.gz": "application/gzip", "tar.zst": "application/zstd"} {
		t.Run(format, func(t *testing.T) {
			sb := sb.In(t)
			resp := sb.Call("GET", archivePath("/workspace/src", "format", format), nil)
			if resp.Status != 200 || resp.Header.Get("Content-Type") != kind || !strings.HasPrefix(resp.Header.Get("Content-Disposition"), "attachment") {
				t.Fatalf("%v, %v", resp.Status, resp.Header)
			}
			for _, given := range []string{format, ""} {
				target := "/workspace/to-" + format + "-" + given
				more := []string{}
				if given != "" {
					more = []string{"format", given}
				}
				counts := putArchive(t, sb, target, resp.Body, more...)
				if want := (archiveCounts{Files: 6, Directories: 3, Bytes: 300006}); counts != want {
					t.Errorf("counted %+v, want %+v", counts, want)
				}
				sb.Must("diff -r --no-dereference -x fifo src " + target)
				sb.MustSay("750 2001-02-03 700 2001-02-03 2 sandbox", "cd "+target+` && echo -n $(stat -c %a deep/er/x) $(stat -c %y a | cut -d' ' -f1) $(stat -c %a empty) $(stat -c %y empty | cut -d' ' -f1) $(stat -c %h a) $(stat -c %U deep)`)
			}
		})
	}
}

func TestAnArchiveOfOneFileAndOfNothing(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.Must("printf content >f; ln -s f l; mkfifo p; mkdir empty")
	for _, name := range []string{"f", "l"} {
		if got := getTar(t, sb, "/workspace/"+name); len(got) != 1 || got[name].content != "content" {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := getTar(t, sb, "/workspace/empty"); len(got) != 0 {
		t.Errorf("an empty directory: %v", got)
	}
	for path, want := range map[string]int{"/workspace/no": 404, "/workspace/p": 422, "/dev/null": 422, "relative": 400} {
		if resp := sb.Call("GET", archivePath(path), nil); resp.Status != want {
			t.Errorf("%s: %v, want %d", path, resp, want)
		}
	}
	for _, format := range []string{"zip", "tar.bz2", "../x"} {
		if resp := sb.Call("GET", archivePath("/workspace", "format", format), nil); resp.Status != 400 || resp.Problem().Field != "format" {
			t.Errorf("format %s: %v", format, resp)
		}
	}
}

func TestF8NamesOfEveryKindGoThroughAnArchive(t *testing.T) {
	t.Parallel()
	sb := box(t)
	names := []string{
		"a b", "ü日本", "new\nline", "-rf", ".env", "%2e%2e", "a?b#c", strings.Repeat("n", 255), "caf\u00e9", "cafe\u0301", `back\slash`, "...",
		"\xff\xfe not utf8", strings.Repeat("deep/", 60) + "long",
	}
	var entries []entry
	for i, name := range names {
		e := file(name, fmt.Sprint("content ", i))
		if strings.HasPrefix(name, "\xff") {
			e.Format = tar.FormatGNU
		}
		entries = append(entries, e)
	}
	putArchive(t, sb, "/workspace/names", tarOf(t, entries...))
	got := getTar(t, sb, "/workspace/names")
	for i, name := range names {
		if got[name].content != fmt.Sprint("content ", i) {
			t.Errorf("%q holds %q", name, got[name].content)
		}
	}
	if t.Failed() {
		t.Logf("there are %q", slices.Sorted(maps.Keys(got)))
	}
}

func TestAnEntryThatWouldLeaveThePathRefusesTheWholeArchive(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.Must("mkdir -p t/dir outside; ln -s /workspace/outside t/existing; printf old >t/old; printf x >t/isfile; mkdir t/isdir")
	before := sb.Must("find /workspace /tmp | sort; cat t/old")
	good := file("good", "good")
	for name, entries := range map[string][]entry{
		"..":                           {good, file("../outside/evil", "x")},
		".. in the middle":             {good, file("dir/../../outside/evil", "x")},
		"only ..":                      {good, {tar.Header{Typeflag: tar.TypeDir, Name: "../", Mode: 0o755}, ""}},
		"absolute":                     {good, file("/workspace/outside/evil", "x")},
		"through its own symlink":      {good, symlink("s", "/workspace/outside"), file("s/evil", "x")},
		"through a relative symlink":   {good, symlink("s", "../outside"), file("s/evil", "x")},
		"a directory over its symlink": {good, symlink("s", "../outside"), {tar.Header{Typeflag: tar.TypeDir, Name: "s/", Mode: 0o755}, ""}},
		"through a symlink there":      {good, file("existing/evil", "x")},
		"hard link to /etc/passwd":     {good, hardLink("h", "/etc/passwd")},
		"hard link with ..":            {good, hardLink("h", "../outside")},
		"hard link through a symlink":  {good, symlink("s", "/etc"), hardLink("h", "s/passwd")},
		"hard link to what is there":   {good, hardLink("h", "old")},
		"a device with ..":             {good, special(tar.TypeChar, "../dev")},
		"a file in the path's place":   {good, file(".", "x")},
		"below its own file":           {good, file("good/x", "x")},
		"a file over a directory":      {file("old", "new"), file("isdir", "x")},
		"a directory over a file":      {file("old", "new"), file("isfile/x", "x")},
	} {
		t.Run(name, func(t *testing.T) {
			sb := sb.In(t)
			for _, data := range [][]byte{tarOf(t, entries...), gzipped(t, tarOf(t, entries...))} {
				resp := sb.Call("PUT", archivePath("/workspace/t"), data)
				if resp.Status != 422 || resp.Problem().Reason != "unprocessable" || !strings.Contains(resp.Problem().Detail, "nothing was written") {
					t.Errorf("%v", resp)
				}
			}
			if after := sb.Must("find /workspace /tmp | sort; cat t/old"); after != before {
				t.Errorf("something was written:\n%s", after)
			}
		})
	}
	resp := sb.Call("PUT", archivePath("/workspace/new/path"), tarOf(t, good, file("../evil", "x")))
	if resp.Status != 422 || !strings.Contains(resp.Problem().Detail, `"../evil"`) {
		t.Errorf("the entry is not named: %v", resp)
	}
	if after := sb.Must("find /workspace /tmp | sort; cat t/old"); after != before {
		t.Errorf("a path that was made for nothing stays:\n%s", after)
	}
}

func TestAnArchiveMergesWithWhatIsThere(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.Must("mkdir -p t/d/e; printf kept >t/d/kept; printf old >t/d/e/f; ln -s /etc/passwd t/d/link; chmod 711 t/d; printf ro >t/ro; chmod 444 t/ro")
	counts := putArchive(t, sb, "/workspace/t", tarOf(t,
		entry{tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o700}, ""},
		entry{tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o755}, ""},
		file("./d/e/f", "new"), file("d/link", "a file now"), file("d/n/e/w", "w"), file("ro", "rw"),
		entry{tar.Header{Typeflag: tar.TypeReg, Name: "suid", Mode: 0o6755, Size: 1}, "s"},
		entry{tar.Header{Typeflag: tar.TypeReg, Name: "open", Mode: 0o666, Size: 1}, "o"},
		entry{tar.Header{Typeflag: tar.TypeDir, Name: "closed/", Mode: 0o500}, ""}, file("closed/in", "in"),
		special(tar.TypeChar, "dev"), special(tar.TypeBlock, "blk"), special(tar.TypeFifo, "fifo"),
		file("twice", "first"), file("twice", "second"),
	))
	if want := (archiveCounts{Files: 9, Directories: 2, Bytes: 31, Skipped: 3}); counts != want {
		t.Errorf("counted %+v, want %+v", counts, want)
	}
	sb.MustSay("kept new a file now w rw second in 711 755 666 500", `cd t && echo -n $(cat d/kept) $(cat d/e/f) $(cat d/link) $(cat d/n/e/w) $(cat ro) $(cat twice) $(cat closed/in) $(stat -c %a d suid open closed)`)
	sb.MustSay("", "ls -A t | grep -E 'dev|blk|fifo|cay' || true")
}

func TestWhatIsNoArchiveOrIsCutIsRefusedAndWritesNothing(t *testing.T) {
	t.Parallel()
	sb := box(t)
	whole := tarOf(t, file("a", strings.Repeat("a", 5000)), file("b", strings.Repeat("b", 50000)))
	zipped := gzipped(t, whole)
	damaged := bytes.Clone(zipped)
	damaged[len(damaged)-5] ^= 1
	for name, data := range map[string][]byte{
		"nothing": {}, "text": []byte("hello, this is text"), "noise": noise(100000), "a zip": []byte("PK\x03\x04 and so on"), "bzip2": []byte("BZh91AY&SY"),
		"a tar cut in a file": whole[:20000], "a tar cut between files": whole[:512+5120], "a tar without its end": whole[:len(whole)-1024],
		"a gzip cut": zipped[:len(zipped)-20], "a gzip without its checksum": zipped[:len(zipped)-8], "a gzip with a wrong checksum": damaged, "an empty gzip": gzipped(t, nil),
	} {
		resp := sb.Call("PUT", archivePath("/workspace/t"), data)
		if resp.Status != 422 || resp.Problem().Reason != "unprocessable" {
			t.Errorf("%s: %v", name, resp)
		}
	}
	sb.MustSay("", "ls -A /workspace")
	if resp := sb.Call("PUT", archivePath("/workspace/t", "format", "tar.zst"), whole); resp.Status != 422 {
		t.Errorf("a tar that is said to be zstd: %v", resp)
	}
}

func TestAnUploadOfAnArchiveThatIsCutLeavesNothing(t *testing.T) {
	t.Parallel()
	sb := box(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	body, feed := io.Pipe()
	req, err := sb.Request(ctx, "PUT", sb.Path(archivePath("/workspace/t")), body)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		resp, err := sb.HTTP.Do(req)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode/100 == 2 {
				t.Error("a cut archive was taken")
			}
		}
		done <- err
	}()
	data := tarOf(t, file("a", "a"), file("b", strings.Repeat("b", 1<<20)))
	if _, err := feed.Write(data[:900<<10]); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, "it is being written", func() error {
		if sb.X("find /workspace/t -name b | grep b").ExitCode != 0 {
			return fmt.Errorf("nothing yet")
		}
		return nil
	})
	feed.CloseWithError(io.ErrUnexpectedEOF)
	<-done
	testkit.Eventually(t, time.Minute, "nothing is left of it", func() error {
		if got := sb.Must("ls -A /workspace"); got != "" {
			return fmt.Errorf("the directory holds %q", got)
		}
		return nil
	})
}
