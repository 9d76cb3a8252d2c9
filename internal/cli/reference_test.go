package cli

import (
	"bytes"
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write the reference anew")

func TestTheReferenceIsThatOfTheCommands(t *testing.T) {
	const path = "../../docs/reference/cli.md"
	want := Reference(New(Deps{}))
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is stale; write it anew with: go test ./internal/cli -update", path)
	}
}
