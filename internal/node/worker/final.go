package worker

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// maxFinals bounds the sandboxes whose last figures are kept.
const maxFinals = 4096

// finals keeps what sandboxes that are gone had used at last, so that a Destroy whose answer got lost, with either end killed meanwhile,
// finds it again. It forgets the oldest beyond maxFinals.
type finals struct {
	dir string

	mu    sync.Mutex
	order []cay.ID // guarded by mu; the oldest first
}

// openFinals finds what an earlier node kept. Without the directory nothing is kept.
func openFinals(dir string) (*finals, error) {
	f := &finals{dir: dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return f, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return f, err
	}
	written := map[cay.ID]int64{}
	for _, e := range entries {
		id, ok := cay.ParseID(cay.PrefixSandbox, strings.TrimSuffix(e.Name(), ".json"))
		info, err := e.Info()
		if !ok || err != nil {
			_ = os.Remove(filepath.Join(dir, e.Name())) // half written
			continue
		}
		f.order, written[id] = append(f.order, id), info.ModTime().UnixNano()
	}
	slices.SortFunc(f.order, func(a, b cay.ID) int { return cmp.Compare(written[a], written[b]) })
	return f, nil
}

func (f *finals) path(id cay.ID) string { return filepath.Join(f.dir, string(id)+".json") }

// keep writes what a sandbox has used. It is to be called before the sandbox is destroyed.
func (f *finals) keep(id cay.ID, u *usage) {
	if !u.measured() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Contains(f.order[max(0, len(f.order)-maxDying):], id) {
		f.order = append(f.order, id)
	}
	u.save(f.path(id))
	for len(f.order) > maxFinals {
		_ = os.Remove(f.path(f.order[0]))
		f.order = f.order[1:]
	}
}

// maxDying is how far back keep looks for a sandbox that it has kept already: one whose destruction is tried again.
const maxDying = 256

// usage is what a sandbox that is gone had used; all zero for one that is not known.
func (f *finals) usage(id cay.ID) *nodev1.Usage {
	var u usage
	u.load(f.path(id))
	return u.message()
}
