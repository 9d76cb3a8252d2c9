package cay

import (
	"strings"
	"unicode/utf8"
)

// Bounds of the metadata of an object.
const (
	MaxMetadata    = 64      // keys
	MaxMetadataLen = 1 << 10 // bytes of one key and its value
)

// CheckEnv answers why env cannot be the environment of a process, or nil.
func CheckEnv(env map[string]string) error {
	total := 0
	for name, value := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return Errorf(InvalidRequest, "%q cannot be the name of an environment variable", name).On("env")
		}
		if strings.ContainsRune(value, 0) {
			return Errorf(InvalidRequest, "the value of %q holds a NUL byte, which no environment can carry", name).On("env")
		}
		total += len(name) + len(value) + 2 // "=" and the NUL at the end
	}
	if total > MaxEnvBytes {
		return Errorf(InvalidRequest, "the environment has %d bytes; at most %d are possible", total, MaxEnvBytes).With("limit_bytes", MaxEnvBytes).On("env")
	}
	return nil
}

// CheckMetadata answers why metadata cannot be kept with an object, or nil.
func CheckMetadata(metadata map[string]string) error {
	if len(metadata) > MaxMetadata {
		return Errorf(InvalidRequest, "metadata has %d keys; at most %d are possible", len(metadata), MaxMetadata).On("metadata")
	}
	for key, value := range metadata {
		switch {
		case key == "":
			return Errorf(InvalidRequest, "a metadata key is empty").On("metadata")
		case len(key)+len(value) > MaxMetadataLen:
			return Errorf(InvalidRequest, "the metadata key %.40q and its value have more than %d bytes", key, MaxMetadataLen).On("metadata")
		case !plainText(key) || !plainText(value):
			return Errorf(InvalidRequest, "the metadata of %.40q is not UTF-8 or holds a NUL", key).On("metadata")
		}
	}
	return nil
}

func plainText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }
