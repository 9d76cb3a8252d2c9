package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

func (a *app) cpCommand() *cobra.Command {
	var user string
	cmd := &cobra.Command{
		Use:   "cp SRC DST",
		Short: "Copy files and folders to or from a sandbox or a session",
		Long: "Cp copies a file or folder; one of SRC and DST is SBX:PATH, or ses_…:PATH for a session. A relative PATH is of the sandbox's\n" +
			"working directory, or of the session.\n\n" +
			"As with cp -r, what is copied to a directory that exists, or to a name that ends in a slash, goes into it under its own\n" +
			"name. - as SRC is standard input, for a single file; - as DST is standard output, for a directory as a tar archive.\n\n" +
			"Permission bits and, of what is within folders, times are kept. Symbolic links within a folder stay links; what cannot be\n" +
			"copied, and links that would lead out of a downloaded folder, is left out and said.",
		Example: "  cay cp main.py planner:/workspace/\n  cay cp -u root ./config planner:/etc/app\n" +
			"  cay cp planner:/output results\n  cay cp planner:/output/plot.png - > plot.png\n" +
			"  cay cp planner:/output - | tar -t",
		Args: exactly(2),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			from, to := parsePlace(args[0]), parsePlace(args[1])
			if from.remote() == to.remote() {
				return usagef("one side must be in a sandbox, SBX:PATH, or in a session, ses_…:PATH, and the other here; usage: cay cp SRC DST")
			}
			if from.remote() {
				files, path, err := from.open(ctx, c, user)
				if err != nil {
					return err
				}
				return a.download(ctx, files, path, to.path)
			}
			files, path, err := to.open(ctx, c, user)
			if err != nil {
				return err
			}
			return a.upload(ctx, files, from.path, path)
		}),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			ids, _ := a.completeSandboxes(0)(cmd, args, toComplete)
			if strings.HasPrefix(sessionPrefix, toComplete) || strings.HasPrefix(toComplete, sessionPrefix) {
				sessions, _ := a.completeSessions(0)(cmd, args, toComplete)
				ids = append(ids, slices.DeleteFunc(sessions, func(s string) bool { return !strings.HasPrefix(s, sessionPrefix) })...)
			}
			for i, id := range ids {
				ref, about, _ := strings.Cut(id, "\t")
				ids[i] = ref + ":\t" + about
			}
			return ids, cobra.ShellCompDirectiveNoSpace
		},
	}
	cmd.Flags().StringVarP(&user, "user", "u", "", "`USER` of the sandbox whose access and ownership count")
	return cmd
}

func (a *app) upload(ctx context.Context, f tree, from, to string) error {
	if from == "-" {
		if strings.HasSuffix(to, "/") {
			return usagef("standard input has no name; say the file's")
		}
		_, err := f.Write(ctx, to, a.Stdin, client.WriteOptions{})
		return err
	}
	if _, err := os.Stat(from); err != nil {
		return err
	}
	to, err := into(from, to, func() (bool, error) { return remoteDir(ctx, f, to) })
	if err != nil {
		return err
	}
	progress, done := a.progress("sent")
	report, err := f.CopyTo(ctx, from, to, client.CopyOptions{Progress: progress})
	done()
	return a.reportCopy(report, err)
}

func (a *app) download(ctx context.Context, f tree, from, to string) error {
	if to == "-" {
		if isDir, err := remoteDir(ctx, f, from); err != nil {
			return err
		} else if isDir {
			if _, ok := terminal(a.Stdout); ok {
				return usagef("%s is a directory: its archive is not for a terminal; pass it on, as in: cay cp SBX:PATH - | tar -t", from)
			}
			_, err := f.DownloadArchive(ctx, from, a.Stdout, client.ArchiveOptions{Format: client.Tar})
			return err
		}
		r, err := f.Read(ctx, from, client.ReadOptions{})
		if err != nil {
			return err
		}
		defer r.Close()
		if _, err := io.Copy(a.Stdout, r); err != nil {
			return fmt.Errorf("read %s: %w", from, err)
		}
		return nil
	}
	to, err := into(from, to, func() (bool, error) { return localDir(to) })
	if err != nil {
		return err
	}
	progress, done := a.progress("received")
	report, err := f.CopyFrom(ctx, from, filepath.Clean(to), client.CopyOptions{Progress: progress})
	done()
	return a.reportCopy(report, err)
}

// into answers where from goes when it is copied to to: within, under its own name, if to is a directory.
func into(from, to string, isDir func() (bool, error)) (string, error) {
	name := base(filepath.ToSlash(from))
	within := strings.HasSuffix(to, "/")
	if !within {
		var err error
		if within, err = isDir(); err != nil {
			return "", err
		}
	}
	if !within || name == "" { // "." and ".." stand for what is in them
		return to, nil
	}
	return strings.TrimRight(to, "/") + "/" + name, nil
}

func localDir(path string) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.IsDir(), err
}

func remoteDir(ctx context.Context, f tree, path string) (bool, error) {
	info, err := f.Stat(ctx, path)
	if client.ReasonOf(err) == client.ReasonNotFound {
		return false, nil
	}
	return err == nil && info.IsDir(), err
}

// reportCopy says what was left out; the copy of the rest is a success.
func (a *app) reportCopy(r *client.CopyReport, err error) error {
	if r != nil {
		for _, s := range r.Skipped {
			a.note("left out %s: %s", printable(s.Path), printable(s.Why))
		}
	}
	if err != nil || !a.json() {
		return err
	}
	skipped := []map[string]string{}
	for _, s := range r.Skipped {
		skipped = append(skipped, map[string]string{"path": s.Path, "why": s.Why})
	}
	return a.printJSON(map[string]any{"files": r.Files, "directories": r.Directories, "symlinks": r.Symlinks, "bytes": r.Bytes, "skipped": skipped})
}

// progress shows the bytes that pass, on a terminal. done ends the line and waits for the painter.
func (a *app) progress(verb string) (passed func(int64), done func()) {
	if _, ok := terminal(a.Stderr); !ok {
		return nil, func() {}
	}
	var total atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		shown := false
		for {
			select {
			case <-tick.C:
				fmt.Fprintf(a.Stderr, "\r%s %s \x1b[K", formatBytes(total.Load()), verb)
				shown = true
			case <-stop:
				if shown {
					fmt.Fprint(a.Stderr, "\r\x1b[K")
				}
				return
			}
		}
	})
	return func(n int64) { total.Add(n) }, func() { close(stop); wg.Wait() }
}

func (a *app) lsCommand() *cobra.Command {
	var user string
	cmd := &cobra.Command{
		Use:     "ls SBX[:PATH] | ses_…[:PATH]",
		Short:   "List files of a sandbox or a session",
		Long:    "Ls lists a directory, or shows a file. Without a PATH it is the sandbox's working directory, or all of the session.",
		Example: "  cay ls planner\n  cay ls planner:/output",
		Args:    exactly(1),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			p := parsePlace(args[0])
			if !p.remote() {
				p = place{sandbox: args[0]}
			}
			files, path, err := p.open(ctx, c, user)
			if err != nil {
				return err
			}
			return a.list(ctx, files, path)
		}),
		ValidArgsFunction: a.completeSandboxes(1),
	}
	cmd.Flags().StringVarP(&user, "user", "u", "", "`USER` of the sandbox whose access counts")
	return cmd
}

func (a *app) list(ctx context.Context, f tree, path string) error {
	info, err := f.Stat(ctx, path)
	if err != nil {
		return err
	}
	items := []client.FileInfo{*info}
	if info.IsDir() || strings.HasSuffix(path, "/") {
		items = items[:0]
		for item, err := range f.List(ctx, path, 1) {
			if err != nil {
				return err
			}
			items = append(items, item)
		}
	}
	if a.json() {
		return a.printJSON(items)
	}
	return a.table("MODE\tUSER\tSIZE\tMODIFIED\tNAME", func(row func(...any)) {
		for _, item := range items {
			name := item.Name
			if item.IsSymlink() {
				name += " -> " + item.Target
			}
			row(modeText(item), item.User, item.Size, item.ModifiedAt.Local().Format("2006-01-02 15:04"), name)
		}
	})
}

// modeText is the mode as ls -l writes it.
func modeText(i client.FileInfo) string {
	kind := map[string]string{"directory": "d", "symlink": "l", "file": "-", "fifo": "p", "socket": "s", "device": "c"}[i.Type]
	if kind == "" {
		kind = "?"
	}
	return kind + i.Mode.Perm().String()[1:]
}
