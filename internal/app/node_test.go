package app

import (
	"testing"

	"github.com/cayhq/cay/internal/config"
)

func TestDiskThatSandboxesHoldStaysInTheCapacity(t *testing.T) {
	c := config.Default()
	c.DataDir = t.TempDir()
	before, err := capacityOf(c, 0)
	if err != nil {
		t.Fatal(err)
	}
	const inUse = 1 << 50 // far more than what others may write meanwhile
	after, err := capacityOf(c, inUse)
	if err != nil {
		t.Fatal(err)
	}
	if grown := after.diskGB - before.diskGB; grown < 0.9*(1<<20) {
		t.Fatalf("%v GB more, want %v", grown, 1<<20)
	}
}
