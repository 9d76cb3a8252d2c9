package problem

import (
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/cayhq/cay"
)

func TestX(t *testing.T) {
	b, err := json.Marshal(From(cay.Errorf(cay.Gone, "x").With("status_reason", "y").With("limit", int64(3)), "r"), json.Deterministic(true))
	t.Logf("%s %v", b, err)
}
