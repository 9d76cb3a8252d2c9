package mcp

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cayhq/cay/client"
)

// Caller is on whose behalf a tool is called.
type Caller struct {
	Client *client.Client // with the caller's key

	// Scope tells callers with different keys apart without being a secret: see [ScopeOf].
	Scope string
	// Conversation names the conversation whose default sandbox is meant; "" is the key's own. See [ValidConversation].
	Conversation string
}

var conversation = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// ValidConversation reports whether s can name a conversation: 1 to 64 letters, digits, dots, dashes and underscores.
func ValidConversation(s string) bool { return conversation.MatchString(s) }

// Config is what a server needs. Only Caller is required.
type Config struct {
	// Caller answers on whose behalf the request of ctx is made, or why that cannot be told.
	Caller func(ctx context.Context) (Caller, error)

	Version string // of the build, told to clients

	// Explain adds what the user can do when the server cannot be reached or does not know the key. Nil, or "": nothing to add.
	Explain func(error) string

	// Observe is told of each call that has ended: the tool, and ok, error, canceled or panic. Nil: nobody is.
	Observe func(tool, result string)

	Logger *slog.Logger // nil: discarded. It never gets arguments or results
}

// maxCalls bounds the calls of one caller that run at once.
const maxCalls = 32

// server is what the tools share.
type server struct {
	Config
	now func() time.Time

	mu    sync.Mutex
	calls map[string]int // running, by scope; guarded by mu
}

const instructions = `Cay runs code in isolated Linux sandboxes. Nothing needs to be set up: leave sandbox_id out and every tool uses this conversation's default sandbox, which is made on first use and keeps its files and variables between calls.
run_code is the usual tool: it keeps variables per language, and what code writes to /output comes back with the result, pictures as pictures. run_command is for shell commands, start_process for servers and other long-running programs.
The working directory is /workspace. There is no network inside: nothing can be downloaded or installed from elsewhere; files come by write_file and upload_file.`

// New makes a server with all tools. It panics if a tool's schema cannot be made, which a test would show.
func New(c Config) *sdk.Server {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s := &server{Config: c, now: time.Now, calls: map[string]int{}}
	out := sdk.NewServer(&sdk.Implementation{Name: "cay", Title: "Cay sandboxes", Version: cmpOr(c.Version, "devel")}, &sdk.ServerOptions{
		Instructions: instructions, Logger: slog.New(slog.DiscardHandler),
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}},
		SetCacheable: func(_ context.Context, _ sdk.Request, c *sdk.Cacheable) {
			c.TTLMs = int((5 * time.Minute).Milliseconds())
		},
	})
	s.codeTools(out)
	s.commandTools(out)
	s.processTools(out)
	s.fileTools(out)
	s.sandboxTools(out)
	s.sessionTools(out)
	s.portTools(out)
	out.AddReceivingMiddleware(toolsOnly)
	return out
}

// toolsOnly refuses the methods of what the server does not declare; the SDK would answer some of them with empty lists.
func toolsOnly(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
		for _, group := range []string{"prompts/", "resources/", "completion/", "logging/"} {
			if strings.HasPrefix(method, group) {
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "method not found: " + method}
			}
		}
		return next(ctx, method, r)
	}
}

var errTooManyCalls = &fault{reason: client.ReasonRateLimited, detail: "too many calls with this key run at once", advice: "Wait for some of them to end, then call again."}

// enter counts a call of a scope; leave ends it.
func (s *server) enter(scope string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[scope] >= maxCalls {
		return nil, errTooManyCalls
	}
	s.calls[scope]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.calls[scope]--; s.calls[scope] == 0 {
			delete(s.calls, scope)
		}
	}, nil
}

func cmpOr(s, otherwise string) string {
	if s != "" {
		return s
	}
	return otherwise
}

// Why the context of a call has ended, where it was not its deadline.
var (
	errCanceled = errors.New("the client canceled the call")
	errStopping = errors.New("the server is stopping")
)
