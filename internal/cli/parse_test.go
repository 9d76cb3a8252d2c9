package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/client"
)

func TestPlacesAreReadAsTheirWritersMeant(t *testing.T) {
	for in, want := range map[string]place{
		"a":             {path: "a"},
		"-":             {path: "-"},
		"./a:b":         {path: "./a:b"},
		"/a:b":          {path: "/a:b"},
		"dir/a:b":       {path: "dir/a:b"},
		"../a:b":        {path: "../a:b"},
		":x":            {path: ":x"},
		"sbx_1:/x":      {"sbx_1", "/x"},
		"planner:":      {"planner", ""},
		"planner:a:b":   {"planner", "a:b"},
		"planner:../x":  {"planner", "../x"},
		"planner:ü日\n本": {"planner", "ü日\n本"},
	} {
		if got := parsePlace(in); got != want {
			t.Errorf("%q: got %+v, want %+v", in, got, want)
		}
	}
}

func FuzzPlace(f *testing.F) {
	for _, s := range []string{"", ":", "a:b", "./a:b", "sbx_1:/x", "..:x", "a/b:c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p := parsePlace(s)
		if !p.remote() && p.path != s {
			t.Fatalf("%q became the local path %q", s, p.path)
		}
		if p.remote() && (p.sandbox+":"+p.path != s || strings.ContainsAny(p.sandbox, "/:")) {
			t.Fatalf("%q became %+v", s, p)
		}
		if b := base(s); strings.Contains(b, "/") || b == "." || b == ".." {
			t.Fatalf("%q has the base %q", s, b)
		}
	})
}

func FuzzSize(f *testing.F) {
	for _, s := range []string{"512m", "2g", "1.5GiB", "1", "-1k", "1e9m", "nan", "infg", "0x1k", "9999999t"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var s size
		var d duration
		if s.Set(text) == nil && s < 0 || d.Set(text) == nil && d <= 0 {
			t.Fatalf("%q became %d, %d", text, s, d)
		}
	})
}

func TestSizesAndTimes(t *testing.T) {
	for in, mb := range map[string]int64{"512m": 512, "512M": 512, "2g": 2048, "2GiB": 2048, "1.5gb": 1536, "1k": 1, "1048576b": 1} {
		var s size
		if err := s.Set(in); err != nil || s.mb() != mb {
			t.Errorf("%s: %d MB, %v", in, s.mb(), err)
		}
	}
	for _, in := range []string{"", "512", "m", "-1m", "0g", "1x", "1mm", "nanm", "infg", "1e30g"} {
		var s size
		if err := s.Set(in); err == nil {
			t.Errorf("%q was taken for %d bytes", in, s)
		}
	}
	for in, want := range map[string]time.Duration{"30s": 30 * time.Second, "10m": 10 * time.Minute, "1h30m": 90 * time.Minute, "2d": 48 * time.Hour, "5": 5 * time.Second, "0.5": time.Second / 2} {
		var d duration
		if err := d.Set(in); err != nil || time.Duration(d) != want {
			t.Errorf("%s: %s, %v", in, time.Duration(d), err)
		}
	}
	for _, in := range []string{"", "x", "-1s", "0", "nan", "1e300", "d"} {
		var d duration
		if err := d.Set(in); err == nil {
			t.Errorf("%q was taken for %s", in, time.Duration(d))
		}
	}
}

func TestReferencesMatchIDsByTheirBeginning(t *testing.T) {
	const id = "sbx_01jabcdefghjkmnpqrstvwxyz0"
	for ref, want := range map[string]bool{"sbx_01j": true, "01ja": true, id: true, "sbx_": false, "": false, "1j": false, "SBX_01": false} {
		if got := isPrefix("sbx_", ref, id); got != want {
			t.Errorf("%q: %v", ref, got)
		}
	}
	if !isID("sbx_", id) || isID("sbx_", "sbx_01") || isID("sbx_", "prc_01jabcdefghjkmnpqrstvwxyz0") || isID("sbx_", "sbx_01jabcdefghjkmnpqrstvwxy/.") {
		t.Error("ids are not told from other things")
	}
}

func TestWhatASandboxChoseCannotDriveTheTerminal(t *testing.T) {
	for in, want := range map[string]string{
		"plain ü日本":       "plain ü日本",
		"a\x1b]0;t\x07b":  `a\x1b]0;t\ab`,
		"new\nline\ttab":  `new\nline\ttab`,
		"\u202eright":     `\u202eright`,
		"it's \"quoted\"": "it's \"quoted\"",
	} {
		if got := printable(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestFiguresForPeople(t *testing.T) {
	for n, want := range map[int64]string{0: "0B", 1023: "1023B", 1024: "1K", 1536: "1.5K", 512 << 20: "512M", 1<<30 - 1: "1G", 3 << 40: "3T"} {
		if got := formatBytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{-time.Hour: "0s", 45 * time.Second: "45s", 12 * time.Minute: "12m", 200 * time.Minute: "3h20m", 120 * time.Hour: "5d"} {
		if got := shortDuration(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
	if got := until(&client.Sandbox{Status: client.Paused, ExpiresAt: time.Now().Add(time.Hour)}); got != "" {
		t.Errorf("a paused sandbox ends %s", got)
	}
}
