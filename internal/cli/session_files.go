package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

func (a *app) sessionFilesCommand() *cobra.Command {
	return parent("files", "Files of a session, with no sandbox running", nil,
		a.sessionFilesListCommand(), a.sessionFilesGetCommand(), a.sessionFilesPutCommand(), a.sessionFilesRemoveCommand())
}

// inSession reads SES[:PATH], where SES may be a name, and opens the session's files.
func inSession(ctx context.Context, c *client.Client, arg string) (f *client.SessionFiles, path string, err error) {
	ref, path, _ := strings.Cut(arg, ":")
	f, err = sessionFiles(ctx, c, ref)
	return f, path, err
}

func (a *app) sessionFilesListCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "ls SES[:PATH]",
		Short:             "List files of a session",
		Long:              "Ls lists a directory, or shows a file. Without a PATH it is all of the session.",
		Example:           "  cay session files ls planner\n  cay session files ls planner:data",
		Args:              exactly(1),
		ValidArgsFunction: a.completeSessions(1),
		RunE: a.ofSession(func(ctx context.Context, c *client.Client, args []string) error {
			f, path, err := inSession(ctx, c, args[0])
			if err != nil {
				return err
			}
			return a.list(ctx, f, path)
		}),
	}
}

func (a *app) sessionFilesGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "get SES:PATH [DST | -]",
		Short: "Copy a file or folder out of a session",
		Long: "Get copies to DST, or here under its own name. - is standard output: a file as it is, a directory as a tar archive. What is said of\n" +
			"cay cp holds here, too.",
		Example:           "  cay session files get planner:model.bin\n  cay session files get planner:results ./out",
		Args:              between(1, 2),
		ValidArgsFunction: a.completeSessions(1),
		RunE: a.ofSession(func(ctx context.Context, c *client.Client, args []string) error {
			f, path, err := inSession(ctx, c, args[0])
			if err != nil {
				return err
			}
			to := "."
			if len(args) == 2 {
				to = args[1]
			}
			if path == "" && to == "." {
				return usagef("say where all of the session is to go; usage: cay session files get SES: DST")
			}
			return a.download(ctx, f, path, to)
		}),
	}
}

func (a *app) sessionFilesPutCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "put SRC | - SES[:PATH]",
		Short: "Copy a file or folder into a session",
		Long: "Put copies SRC to PATH, or under its own name to the top of the session. - is standard input, for a single file. What is said of\n" +
			"cay cp holds here, too.",
		Example: "  cay session files put data.csv planner\n  cay session files put ./src planner:src\n  seq 3 | cay session files put - planner:numbers",
		Args:    exactly(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return a.completeSessions(2)(cmd, args, toComplete)
		},
		RunE: a.ofSession(func(ctx context.Context, c *client.Client, args []string) error {
			f, path, err := inSession(ctx, c, args[1])
			if err != nil {
				return err
			}
			if path == "" {
				path = "/"
			}
			return a.upload(ctx, f, args[0], path)
		}),
	}
}

func (a *app) sessionFilesRemoveCommand() *cobra.Command {
	var recursive bool
	cmd := &cobra.Command{
		Use:               "rm [-r] SES:PATH…",
		Short:             "Remove files of a session",
		Example:           "  cay session files rm planner:old.csv\n  cay session files rm -r planner:cache",
		Args:              atLeast(1),
		ValidArgsFunction: a.completeSessions(0),
		RunE: a.ofSession(func(ctx context.Context, c *client.Client, args []string) error {
			return a.eachRef(args, func(ref string) (string, error) { return ref, nil }, func(ref string) (any, error) {
				f, path, err := inSession(ctx, c, ref)
				if err != nil {
					return nil, err
				}
				if path == "" {
					return nil, usagef("say which file, SES:PATH; the session itself is removed by: cay session rm")
				}
				return map[string]string{"path": path}, f.Remove(ctx, path, recursive)
			})
		}),
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "directories with all that is in them")
	return cmd
}

// formatOf is the archive format that a file's name says; "" is none.
func formatOf(name string) client.ArchiveFormat {
	for suffix, format := range map[string]client.ArchiveFormat{".tar": client.Tar, ".tar.gz": client.TarGzip, ".tgz": client.TarGzip, ".tar.zst": client.TarZstd} {
		if strings.HasSuffix(strings.ToLower(filepath.Base(name)), suffix) {
			return format
		}
	}
	return ""
}

func (a *app) sessionExportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "export SES [FILE | -]",
		Short: "Write all files of a session to an archive",
		Long: "Export writes an archive to FILE, whose name says its format: .tar, .tar.gz (.tgz) or .tar.zst; or as tar.gz to standard output.\n" +
			"FILE appears only when it is whole.",
		Example:           "  cay session export planner planner.tar.zst\n  cay session export planner | tar -tz",
		Args:              between(1, 2),
		ValidArgsFunction: a.completeSessions(1),
		RunE: a.ofSession(func(ctx context.Context, c *client.Client, args []string) error {
			to := "-"
			if len(args) == 2 {
				to = args[1]
			}
			o := client.ArchiveOptions{Format: client.TarGzip}
			if to != "-" {
				if o.Format = formatOf(to); o.Format == "" {
					return usagef("%s: the name does not say the format; end it in .tar, .tar.gz or .tar.zst", to)
				}
			} else if _, ok := terminal(a.Stdout); ok {
				return usagef("an archive is not for a terminal; say a FILE, or pass it on, as in: cay session export %s | tar -tz", args[0])
			}
			f, err := sessionFiles(ctx, c, args[0])
			if err != nil {
				return err
			}
			if to == "-" {
				_, err := f.DownloadArchive(ctx, "", a.Stdout, o)
				return err
			}
			return exportTo(to, func(w io.Writer) error {
				_, err := f.DownloadArchive(ctx, "", w, o)
				return err
			})
		}),
	}
}

// exportTo gives a file its name once all of it is written.
func exportTo(name string, write func(io.Writer) error) (err error) {
	partName := filepath.Join(filepath.Dir(name), fmt.Sprintf(".%s.%d", filepath.Base(name), os.Getpid()))
	part, err := os.OpenFile(partName, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			part.Close()
			os.Remove(partName)
		}
	}()
	if err := write(part); err != nil {
		return err
	}
	if err := part.Close(); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return os.Rename(partName, name)
}

func (a *app) sessionImportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "import SES [FILE | -]",
		Short: "Unpack an archive into a session",
		Long: "Import unpacks FILE, or standard input, over what the session holds: tar, tar.gz or tar.zst, told by its content. It is all or\n" +
			"nothing: what goes wrong leaves the session as it was.",
		Example:           "  cay session import planner planner.tar.zst\n  tar -c src | cay session import planner",
		Args:              between(1, 2),
		ValidArgsFunction: a.completeSessions(1),
		RunE: a.ofSession(func(ctx context.Context, c *client.Client, args []string) error {
			in := a.Stdin
			if len(args) == 2 && args[1] != "-" {
				file, err := os.Open(args[1])
				if err != nil {
					return err
				}
				defer file.Close()
				in = file
			} else if _, ok := terminal(a.Stdin); ok {
				return usagef("standard input is a terminal; say a FILE, as in: cay session import %s FILE", args[0])
			}
			f, err := sessionFiles(ctx, c, args[0])
			if err != nil {
				return err
			}
			report, err := f.UploadArchive(ctx, "", in, client.ArchiveOptions{})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(report)
			}
			if report.Skipped > 0 {
				a.note("left out %d devices, pipes and sockets", report.Skipped)
			}
			_, err = fmt.Fprintf(a.Stdout, "%d files, %s\n", report.Files, formatBytes(report.Bytes))
			return err
		}),
	}
}
