// Command cay-runsc is gVisor's runsc, built from the pinned module and carried inside cay.
//
// It is upstream's command set without the embedded side binaries (a checkpoint gofer that Cay does not use): 36 MB instead of
// 83 MB. It is not a place for Cay's logic; the driver in internal/driver/gvisor decides how it is called.
package main

import (
	"github.com/google/subcommands"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/version"
)

// version.Version is set by the linker; the reference keeps it in the binary.
var _ = version.Version()

func main() {
	commands := map[util.SubCommand]string{
		new(cmd.Checkpoint): "",
		new(cmd.Create):     "",
		new(cmd.Delete):     "",
		new(cmd.Events):     "",
		new(cmd.Exec):       "",
		new(cmd.Kill):       "",
		new(cmd.List):       "",
		new(cmd.PS):         "",
		new(cmd.Pause):      "",
		new(cmd.Restore):    "",
		new(cmd.Resume):     "",
		new(cmd.Run):        "",
		new(cmd.Start):      "",
		new(cmd.State):      "",
		new(cmd.Update):     "",
		new(cmd.Wait):       "",

		new(cmd.Debug): "debug",
		new(cmd.Usage): "debug",

		new(cmd.Features): "helpers",

		new(sentrycmd.Boot):   "internal use only",
		new(cmd.Gofer):        "internal use only",
		new(sentrycmd.Umount): "internal use only",
	}
	cli.Run(nil, commands, []subcommands.Command{new(cmd.Platforms), new(cmd.Syscalls)})
}
