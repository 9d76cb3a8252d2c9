// Command cay is the whole product: the server, the node, and the command line that talks to them.
package main

import (
	"context"
	"os"

	"github.com/cayhq/cay/internal/app"
	"github.com/cayhq/cay/internal/cli"
)

func main() {
	root := cli.New(cli.Deps{Version: app.Version, LocalChecks: app.Checks}, app.Commands()...)
	os.Exit(cli.Execute(context.Background(), root, os.Args[1:]))
}
