package e2e

import (
	"testing"

	"github.com/cayhq/cay/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type fields = testkit.Fields
