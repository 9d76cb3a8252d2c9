package config

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func noEnv(string) (string, bool) { return "", false }

func TestFlagsWinOverEnvironmentWinsOverFileWinsOverDefaults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cay.yaml")
	if err := os.WriteFile(file, []byte("listen: 127.0.0.1:1\npool_size: 5\nlog_level: warn\nallowed_origins: [https://a.test, https://b.test]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"CAY_LISTEN": "127.0.0.1:2", "CAY_POOL_SIZE": "6"}
	got, err := Load(file, true, func(k string) (string, bool) { v, ok := env[k]; return v, ok }, map[string]string{"listen": "127.0.0.1:3"})
	if err != nil {
		t.Fatal(err)
	}
	if got.Listen != "127.0.0.1:3" || got.PoolSize != 6 || got.LogLevel != "warn" || got.LogFormat != "text" || len(got.Origins) != 2 {
		t.Errorf("got %+v", got.Config)
	}
	want := map[string]string{"listen": "flag", "pool_size": "$CAY_POOL_SIZE", "log_level": file, "log_format": "default"}
	for _, s := range got.Settings() {
		if w, ok := want[s.Key]; ok && s.Source != w {
			t.Errorf("%s comes from %s, want %s", s.Key, s.Source, w)
		}
	}
}

func TestUnknownKeysAndBadValuesAreAllReported(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cay.yaml")
	if err := os.WriteFile(file, []byte("lissten: x\npool_size: many\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(file, true, noEnv, nil)
	if err == nil || !strings.Contains(err.Error(), "lissten") || !strings.Contains(err.Error(), "pool_size") {
		t.Errorf("got %v", err)
	}
}

func TestValidateReportsEveryFaultAtOnce(t *testing.T) {
	c := Default()
	c.DataDir, c.Listen, c.BootstrapKey, c.LogLevel, c.CPUOvercommit = "rel", "nonsense", "cay_short", "loud", math.NaN()
	err := c.Validate()
	for _, key := range []string{"data_dir", "listen", "bootstrap_key", "log_level", "cpu_overcommit"} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s is not reported in: %v", key, err)
		}
	}
}

func TestDefaultsAreValid(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
}

func TestSecretsAreNeverShown(t *testing.T) {
	secret := "cay_" + strings.Repeat("ab", 32)
	l, err := Load(filepath.Join(t.TempDir(), "none.yaml"), false, noEnv, map[string]string{"bootstrap_key": secret})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range l.Settings() {
		if strings.Contains(s.Value, secret) {
			t.Errorf("%s shows the secret", s.Key)
		}
	}
}

func TestAFileThatWasAskedForMustExist(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml"), true, noEnv, nil); err == nil {
		t.Error("a missing file went unnoticed")
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml"), false, noEnv, nil); err != nil {
		t.Error(err)
	}
}
