package mcp

import (
	"context"
	"fmt"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cayhq/cay/client"
)

type portInput struct {
	Port      int    `json:"port" jsonschema:"The port that a server inside the sandbox listens on, also on its loopback only; it need not run yet"`
	SandboxID string `json:"sandbox_id,omitempty" jsonschema:"The sandbox to use. Leave it out for the default sandbox of this conversation"`
	Public    bool   `json:"public,omitempty" jsonschema:"true: anyone who has the URL may use it; otherwise the token is needed as well"`
}

type portOutput struct {
	SandboxID   string `json:"sandbox_id"`
	Port        int    `json:"port"`
	URL         string `json:"url"`
	Public      bool   `json:"public"`
	Token       string `json:"token,omitempty" jsonschema:"For programs, in the header that token_header names"`
	TokenHeader string `json:"token_header,omitempty"`
	BrowserURL  string `json:"browser_url,omitempty" jsonschema:"For a person's browser: the URL with the token, which it trades for a cookie"`
}

func (s *server) portTools(to *sdk.Server) {
	add(s, to, "get_port_url", "Give a port of a sandbox a URL, so that a person's browser or another program can reach a server inside, such as one that start_process runs. "+
		"Asking again answers the same URL, with who may use it as asked last.",
		hints{title: "Get a port's URL", idempotent: true, openWorld: true}, limits{"port": between(1, 65535)}, getPortURL)
}

func getPortURL(ctx context.Context, c *call, in portInput) (answer[portOutput], error) {
	sandbox, err := c.sandbox(ctx, in.SandboxID)
	if err != nil {
		return answer[portOutput]{}, err
	}
	p, err := c.Ports(sandbox).Expose(ctx, in.Port, client.ExposeOptions{Public: in.Public})
	if err != nil {
		return answer[portOutput]{}, err
	}
	out := portOutput{SandboxID: sandbox, Port: p.Port, URL: p.URL, Public: p.Public, Token: p.Token}
	text := fmt.Sprintf("Port %d of %s is at %s", p.Port, sandbox, p.URL)
	if p.Token != "" {
		out.TokenHeader, out.BrowserURL = client.TokenHeader, p.TokenURL()
		text += fmt.Sprintf("\nIn a browser: %s\nFor programs: the header %s: %s", out.BrowserURL, client.TokenHeader, p.Token)
	}
	return answer[portOutput]{out: out, text: text}, nil
}
