package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
	"github.com/cayhq/cay/internal/mcp"
)

const (
	eofGrace     = 10 * time.Second // for calls that run when standard input ends
	closeDefault = 10 * time.Second // for the default sandbox to be deleted at the end
)

func (a *app) mcpCommand() *cobra.Command {
	var (
		conversation string
		keep         bool
	)
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Offer sandboxes as tools to a model's client, over the Model Context Protocol on standard input and output",
		Long: "Offers sandboxes as tools to a model's client, over the Model Context Protocol on standard input and output. The client starts it; how to set\n" +
			"up the common ones is in docs/how-to/mcp.md. A server offers the same over HTTP at /mcp.\n\n" +
			"Tools that name no sandbox use the conversation's default sandbox, which is made on first use and deleted when standard input ends.",
		Example: "  cay mcp\n  cay mcp --conversation thesis --keep",
		Args:    noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if conversation == "" {
				conversation = "stdio-" + strings.ToLower(rand.Text())
			}
			if !mcp.ValidConversation(conversation) {
				return usagef("--conversation %q: 1 to 64 letters, digits, dots, dashes and underscores", conversation)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return a.serveMCP(ctx, conversation, keep)
		},
	}
	cmd.Flags().StringVar(&conversation, "conversation", "", "`ID` of the conversation: those with one id and key share a default sandbox (default: a new one)")
	cmd.Flags().BoolVar(&keep, "keep", false, "leave the default sandbox at the end; it pauses when it is idle")
	return cmd
}

// serveMCP serves until standard input ends or ctx does.
func (a *app) serveMCP(ctx context.Context, conversation string, keep bool) error {
	link := &mcpLink{a: a, conversation: conversation}
	defer link.close()
	server := mcp.New(mcp.Config{
		Version: a.Version, Caller: link.caller, Explain: link.explain, Logger: slog.New(slog.NewTextHandler(a.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	serving, cancel := context.WithCancel(ctx)
	defer cancel()
	err := server.Run(mcp.WithLifetime(serving), &stdio{in: a.Stdin, out: a.Stdout, expired: cancel})
	if !keep {
		link.deleteDefault(ctx)
	}
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// stdio is the transport over standard input and output. Its end of input waits for the calls that run, so that a client that only
// writes requests and closes its end gets the answers.
type stdio struct {
	in      io.Reader
	out     io.Writer
	expired func() // called when it has waited too long: cancels the calls
}

// Connect implements sdk.Transport.
func (t *stdio) Connect(ctx context.Context) (sdk.Connection, error) {
	inner, err := (&sdk.IOTransport{Reader: io.NopCloser(t.in), Writer: nopClose{t.out}}).Connect(ctx)
	return &stdioConn{Connection: inner, idle: make(chan struct{}, 1), expired: t.expired}, err
}

type nopClose struct{ io.Writer }

func (nopClose) Close() error { return nil }

// stdioConn counts the calls that have not been answered.
type stdioConn struct {
	sdk.Connection
	expired func()
	open    atomic.Int64
	idle    chan struct{} // gets a value whenever open has become 0
}

// Read implements sdk.Connection.
func (c *stdioConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	message, err := c.Connection.Read(ctx)
	if call, ok := message.(*jsonrpc.Request); ok && err == nil && call.IsCall() {
		c.open.Add(1)
	}
	if err == nil || ctx.Err() != nil {
		return message, err
	}
	grace := time.NewTimer(eofGrace)
	defer grace.Stop()
	for c.open.Load() > 0 {
		select {
		case <-c.idle:
		case <-grace.C:
			c.expired()
			return message, err
		case <-ctx.Done():
			return message, err
		}
	}
	return message, err
}

// Write implements sdk.Connection.
func (c *stdioConn) Write(ctx context.Context, message jsonrpc.Message) error {
	err := c.Connection.Write(ctx, message)
	if _, ok := message.(*jsonrpc.Response); ok && c.open.Add(-1) == 0 {
		select {
		case c.idle <- struct{}{}:
		default:
		}
	}
	return err
}

// mcpLink finds the server anew for each call, so that one that is started later, or gets another address or key, is found.
type mcpLink struct {
	a            *app
	conversation string
	used         atomic.Bool // a call was made

	mu     sync.Mutex
	found  client.Settings // guarded by mu
	client *client.Client  // for found; guarded by mu
}

func (l *mcpLink) caller(context.Context) (mcp.Caller, error) {
	l.used.Store(true)
	found, err := client.Discover(l.a.Getenv)
	if err != nil {
		return mcp.Caller{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client == nil || found.URL != l.found.URL || found.Key != l.found.Key {
		c, err := client.New(client.Options{URL: found.URL, Key: found.Key, UserAgent: "cay-mcp/" + l.a.Version})
		if err != nil {
			return mcp.Caller{}, err
		}
		if l.client != nil {
			l.client.Close()
		}
		l.client = c
	}
	l.found = found
	return mcp.Caller{Client: l.client, Scope: mcp.ScopeOf(found.Key), Conversation: l.conversation}, nil
}

// explain says what the user can do when the server is not there, or does not know the key.
func (l *mcpLink) explain(err error) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	here := *l.a
	here.found = l.found
	if advice := here.adviceFor(err); advice != "" {
		return "Tell the user: " + advice
	}
	return "Tell the user that the Cay server at " + l.found.URL + " cannot be reached."
}

func (l *mcpLink) deleteDefault(ctx context.Context) {
	if !l.used.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeDefault)
	defer cancel()
	caller, err := l.caller(ctx)
	if err == nil {
		err = mcp.CloseDefault(ctx, caller)
	}
	if err != nil {
		l.a.note("the default sandbox could not be deleted: %v", err)
	}
}

func (l *mcpLink) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client != nil {
		l.client.Close()
	}
}
