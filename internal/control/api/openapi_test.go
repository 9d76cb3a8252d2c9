package api

import "testing"

func TestTheDocumentIsBuilt(t *testing.T) {
	b, err := OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", b)
}
