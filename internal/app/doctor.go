package app

import (
	"context"

	"github.com/cayhq/cay/internal/cli"
	"github.com/cayhq/cay/internal/observe/tracing"
)

// Checks is what `cay doctor` says of this environment: what a cay up that is started in it would do.
func Checks(context.Context) []cli.Check {
	const name = "traces"
	switch to, err := tracing.Target(); {
	case err != nil:
		return []cli.Check{{Name: name, Status: "fail", Detail: err.Error()}}
	case to == "":
		return []cli.Check{{Name: name, Status: "info", Detail: "not exported: OTEL_EXPORTER_OTLP_ENDPOINT is not set here"}}
	default:
		return []cli.Check{{Name: name, Status: "ok", Detail: "a cay up that is started here exports to " + to}}
	}
}
