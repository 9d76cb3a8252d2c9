package client_test

import (
	"path/filepath"
	"testing"

	"github.com/cayhq/cay/client"
)

func TestTheServerAndItsKeyAreFound(t *testing.T) {
	const local, other = "http://127.0.0.1:9999", "https://cay.example.com"
	dir := t.TempDir()
	write(t, dir, "key", "cay_local\n", 0o600)
	withURL := t.TempDir()
	write(t, withURL, "key", "cay_local\n", 0o600)
	write(t, withURL, "url", local+"\n", 0o644)
	for name, tt := range map[string]struct {
		env      map[string]string
		url, key string
		keyFrom  string
	}{
		"the default":                          {map[string]string{"CAY_DATA_DIR": dir}, client.DefaultURL, "cay_local", filepath.Join(dir, "key")},
		"where the server wrote its address":   {map[string]string{"CAY_DATA_DIR": withURL}, local, "cay_local", filepath.Join(withURL, "key")},
		"the environment":                      {map[string]string{"CAY_DATA_DIR": withURL, "CAY_URL": other, "CAY_API_KEY": "cay_env"}, other, "cay_env", "CAY_API_KEY"},
		"the local key stays on this machine":  {map[string]string{"CAY_DATA_DIR": withURL, "CAY_URL": other}, other, "", ""},
		"another loopback address gets it":     {map[string]string{"CAY_DATA_DIR": dir, "CAY_URL": "http://localhost:1234"}, "http://localhost:1234", "cay_local", filepath.Join(dir, "key")},
		"a name that only looks like loopback": {map[string]string{"CAY_DATA_DIR": dir, "CAY_URL": "http://localhost.evil.example"}, "http://localhost.evil.example", "", ""},
		"no key":                               {map[string]string{"CAY_DATA_DIR": t.TempDir()}, client.DefaultURL, "", ""},
	} {
		s, err := client.Discover(func(k string) string { return tt.env[k] })
		if err != nil || s.URL != tt.url || s.Key != tt.key || s.KeyFrom != tt.keyFrom {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	if _, err := client.Discover(func(k string) string { return map[string]string{"CAY_URL": "nonsense"}[k] }); err == nil {
		t.Error("nonsense was taken for an address")
	}
}
