package app

import (
	"slices"
	"testing"
)

func TestTheCredentialsOfTheStorageReachOnlyWhoAsksForThem(t *testing.T) {
	for name, value := range map[string]string{"AWS_SECRET_ACCESS_KEY": "s3cret", "FOO_SECRET": "foo", "OTEL_SERVICE_NAME": "cay"} {
		t.Setenv(name, value)
	}
	has := func(env []string, kv string) bool { return slices.Contains(env, kv) }
	node, server := childEnv(), childEnv("AWS_")
	if has(node, "AWS_SECRET_ACCESS_KEY=s3cret") || !has(server, "AWS_SECRET_ACCESS_KEY=s3cret") {
		t.Errorf("the node's environment is %q, the server's %q", node, server)
	}
	for _, env := range [][]string{node, server} {
		if has(env, "FOO_SECRET=foo") || !has(env, "OTEL_SERVICE_NAME=cay") {
			t.Errorf("an environment is %q", env)
		}
	}
}
