package contract

import (
	"testing"

	"github.com/cayhq/cay/internal/testkit"
)

// What is logged is what could not be answered; the walk asks for thousands of things.
func TestMain(m *testing.M) { testkit.Main(m, "CAY_LOG_LEVEL=error") }

type fields = testkit.Fields
