package app

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAStartAfterAKillWaitsForTheListenerOfTheDead(t *testing.T) {
	old, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, url := old.Addr().String(), filepath.Join(t.TempDir(), "url")
	if l, err := listen(t.Context(), address, url); err == nil {
		l.Close()
		t.Fatal("an address in use was taken")
	}
	if err := os.WriteFile(url, nil, 0o600); err != nil { // a cay up that ends by itself removes it
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { old.Close() })
	l, err := listen(t.Context(), address, url)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}
