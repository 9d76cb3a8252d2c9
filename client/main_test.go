package client_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cayhq/cay/client"
	"github.com/cayhq/cay/client/clienttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect starts a fake server and a client for it.
func connect(t *testing.T) (*clienttest.Server, *client.Client) {
	t.Helper()
	server := clienttest.New()
	c, err := client.New(client.Options{URL: server.URL, Key: clienttest.Key, ReconnectFor: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close(); c.Close() })
	return server, c
}

func sandbox(t *testing.T, c *client.Client) string {
	t.Helper()
	sb, err := c.Create(context.Background(), client.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return sb.ID
}

// within bounds a test that would otherwise hang.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
