package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/control/api"
)

// Commands are the commands that run or describe an installation on this machine. The others need only the API and live in package
// cli.
func Commands() []*cobra.Command {
	return []*cobra.Command{upCommand(), serverCommand(), nodeCommand(), configCommand(), openapiCommand()}
}

// settings adds the flags of a command that reads the configuration and returns what loads it.
func settings(cmd *cobra.Command) func() (config.Loaded, error) {
	file := cmd.Flags().String("config", "", "configuration file (default $CAY_CONFIG, else /etc/cay/cay.yaml as root and ~/.config/cay/cay.yaml)")
	dataDir := cmd.Flags().String("data-dir", "", "where everything that must last is kept")
	listen := cmd.Flags().String("listen", "", "address of the API, host:port")
	sets := cmd.Flags().StringArray("set", nil, "any setting as KEY=VALUE; `cay config` lists them")
	return func() (config.Loaded, error) {
		path, required := config.Path()
		if *file != "" {
			path, required = *file, true
		}
		flags := map[string]string{}
		for _, kv := range *sets {
			key, value, ok := strings.Cut(kv, "=")
			if !ok {
				return config.Loaded{}, fmt.Errorf("--set %s: want KEY=VALUE", kv)
			}
			flags[key] = value
		}
		for key, value := range map[string]string{"data_dir": *dataDir, "listen": *listen} {
			if value != "" {
				flags[key] = value
			}
		}
		return config.Load(path, required, os.LookupEnv, flags)
	}
}

func upCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start Cay on this machine: server and node, until it is stopped",
		Long: "Start Cay on this machine: an unprivileged server and a node, as two processes that are started again when they die.\n" +
			"Prints one line when all is ready: ready URL. Sandboxes live on when it stops, and are found again by the next start.",
		Args: cobra.NoArgs,
	}
	load := settings(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
		defer stop()
		return Up(ctx, c.Config, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

func serverCommand() *cobra.Command {
	return daemonCommand("server", "Run the control plane alone: the API, the queue, the store", Server)
}

func nodeCommand() *cobra.Command {
	return daemonCommand("node", "Run the node alone: it keeps this machine's sandboxes and serves the server over a unix socket",
		func(ctx context.Context, c config.Config, fromUp bool, _, errOut io.Writer) error {
			return Node(ctx, c, fromUp, errOut)
		})
}

// daemonCommand is a command that runs one of the two processes until it is told to stop: on its own, with its own configuration, or
// started by `cay up`, which hands settings and sockets over on descriptors.
func daemonCommand(use, short string, run func(ctx context.Context, c config.Config, fromUp bool, out, errOut io.Writer) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs}
	load := settings(cmd)
	fromUp := cmd.Flags().Bool("inherited", false, "settings and sockets are inherited from cay up")
	if err := cmd.Flags().MarkHidden("inherited"); err != nil {
		panic(err) // the flag was defined on the line above
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var c config.Loaded
		if !*fromUp {
			var err error
			if c, err = load(); err != nil {
				return err
			}
		}
		tuneCollector()
		ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
		defer stop()
		return run(ctx, c.Config, *fromUp, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

// tuneCollector lets the heap of a server or a node grow to five times what lives in it before it is collected. What lives is tens of
// megabytes at most, and streams spent 8 % of their CPU time in the collector at Go's default of twice (make bench, stream).
func tuneCollector() { debug.SetGCPercent(400) }

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print every setting in force and where it comes from",
		Args:  cobra.NoArgs,
	}
	load := settings(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		if f := cmd.Flag("output"); f != nil && f.Value.String() == "json" {
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			return e.Encode(c.Settings())
		}
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "SETTING\tVALUE\tFROM")
		for _, s := range c.Settings() {
			fmt.Fprintf(w, "%s\t%s\t%s\n", s.Key, s.Value, s.Source)
		}
		return w.Flush()
	}
	return cmd
}

func openapiCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "openapi",
		Short:  "Print the OpenAPI document of this build",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			doc, err := api.OpenAPI()
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(append(doc, '\n'))
			return err
		},
	}
}
