package cay_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/cayhq/cay"

// allowed says what each folder may import of this module, besides its own subfolders. A package is judged by the longest
// matching key; one without a key fails. "." is the root package, the domain.
var allowed = map[string][]string{
	".":                          {},
	"client":                     {},
	"cmd/cay":                    {"internal/app", "internal/cli"},
	"cmd/cay-agent":              {"internal/guest"},
	"internal/app":               {".", "client", "internal"},
	"internal/app/supervisor":    {},
	"internal/bundle":            {},
	"internal/cli":               {"client", "internal/config", "internal/mcp"},
	"internal/config":            {},
	"internal/control/api":       {"internal/observe/tracing", ".", "internal/control/filetype", "internal/wire/noderpc", "internal/wire/nodev1"},
	"internal/control/auth":      {"."},
	"internal/control/blobs":     {"."},
	"internal/control/filetype":  {},
	"internal/control/history":   {"internal/observe/tracing", ".", "internal/wire/noderpc", "internal/wire/nodev1"},
	"internal/control/jobs":      {"internal/observe/tracing", ".", "internal/control/filetype", "internal/wire/noderpc", "internal/wire/nodev1"},
	"internal/control/lifecycle": {"internal/observe/tracing", "."},
	"internal/control/nodes":     {"internal/observe/tracing", ".", "internal/wire/noderpc", "internal/wire/nodev1"},
	"internal/control/ports":     {"."},
	"internal/control/scheduler": {"internal/observe/tracing", ".", "internal/wire/noderpc", "internal/wire/nodev1"},
	"internal/control/scrape":    {"."},
	"internal/control/sessions":  {"internal/observe/tracing", ".", "internal/wire/noderpc", "internal/wire/nodev1"},
	"internal/control/store":     {"."},
	"internal/driver":            {".", "internal/wire"},
	"internal/driver/gvisor":     {"internal/observe/tracing", ".", "internal/bundle", "internal/driver", "internal/node/cgroup", "internal/node/image", "internal/node/mounts", "internal/wire"},
	"internal/duplex":            {},
	"internal/guest":             {".", "internal/duplex", "internal/wire", "internal/wire/guestv1"},
	"internal/node/cgroup":       {},
	"internal/node/image":        {},
	"internal/node/mounts":       {},
	"internal/node/pool":         {"internal/observe/tracing", ".", "internal/driver"},
	"internal/node/journal":      {},
	"internal/node/router":       {"internal/observe/tracing", ".", "internal/driver", "internal/node/spool", "internal/wire", "internal/wire/guestv1"},
	"internal/node/samples":      {},
	"internal/node/spool":        {"."},
	"internal/node/volume":       {".", "internal/node/mounts"},
	"internal/node/worker":       {"internal/observe/tracing", ".", "internal/duplex", "internal/driver", "internal/node/journal", "internal/node/pool", "internal/node/router", "internal/node/samples", "internal/node/spool", "internal/node/volume", "internal/wire", "internal/wire/noderpc", "internal/wire/nodev1", "internal/wire/guestv1"},
	"internal/testkit":           {},
	"internal/mcp":               {"client"},
	"internal/observe":           {},
	"internal/wire":              {},
	"internal/wire/guestv1":      {},
	"internal/wire/noderpc":      {"internal/observe/tracing", "."},
	"internal/wire/nodev1":       {},
	"test":                       {".", "client", "internal/testkit", "internal/wire", "internal/wire/guestv1"},
}

// agentMay lists what the agent may link from outside of this module and the standard library. It runs in every sandbox: small
// matters, and so does each parser in it. compress is what archives are packed with: the standard library has no zstd, and its gzip is
// several times slower.
var agentMay = []string{"golang.org/x/sys", "google.golang.org/protobuf", "github.com/creack/pty", "github.com/klauspost/compress"}

type pkg struct {
	ImportPath, Name, Doc              string
	Imports, TestImports, XTestImports []string
	Deps                               []string
	Standard                           bool
}

func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list", "-json"}, args...)...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %s", exit.Stderr)
		}
		t.Fatal(err)
	}
	var pkgs []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func local(path string) (string, bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

func ruleOf(path string) (key string, ok bool) {
	for k := range allowed {
		if (path == k || k != "." && strings.HasPrefix(path, k+"/")) && len(k) >= len(key) {
			key, ok = k, true
		}
	}
	return key, ok
}

func TestEveryPackageImportsOnlyWhatItsZoneAllows(t *testing.T) {
	for _, p := range list(t, "./...") {
		path, _ := local(p.ImportPath)
		key, ok := ruleOf(path)
		if !ok {
			t.Errorf("%s has no rule in arch_test.go: say what it may import", path)
			continue
		}
		for _, imp := range p.Imports {
			dep, ours := local(imp)
			if !ours || dep == key || key != "." && strings.HasPrefix(dep, key+"/") || permitted(allowed[key], dep) {
				continue
			}
			t.Errorf("%s imports %s, which the rule for %s does not allow", path, dep, key)
		}
	}
}

func permitted(rule []string, dep string) bool {
	for _, r := range rule {
		if dep == r || r != "." && strings.HasPrefix(dep, r+"/") && r != "internal/wire" {
			return true
		}
	}
	return false
}

func TestTheDomainImportsTheStandardLibraryOnly(t *testing.T) {
	for _, p := range list(t, "-deps", ".") {
		if !p.Standard && p.ImportPath != module {
			t.Errorf("the domain depends on %s", p.ImportPath)
		}
	}
}

func TestTheAgentStaysSmall(t *testing.T) {
	for _, p := range list(t, "-deps", "./cmd/cay-agent") {
		if _, ours := local(p.ImportPath); ours || p.Standard {
			continue
		}
		ok := false
		for _, m := range agentMay {
			ok = ok || strings.HasPrefix(p.ImportPath, m)
		}
		if !ok {
			t.Errorf("the agent links %s", p.ImportPath)
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range list(t, "./...") {
		if p.Doc == "" && p.Name != "" && !strings.HasSuffix(p.ImportPath, "connect") && !generated(p.ImportPath) {
			t.Errorf("%s has no package documentation", p.ImportPath)
		}
	}
}

func generated(path string) bool {
	rel, _ := local(path)
	return strings.HasPrefix(rel, "internal/wire/guestv1") || strings.HasPrefix(rel, "internal/wire/nodev1") || strings.Contains(rel, "/sqlcgen") || strings.Contains(rel, "/db")
}

func TestTheDocumentsSpeakOfTheProjectAlone(t *testing.T) {
	for _, doc := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"} {
		if _, err := os.Stat(doc); err != nil {
			t.Errorf("%s is missing", doc)
		}
	}
}
