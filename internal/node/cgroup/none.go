package cgroup

import (
	"context"
	"os/exec"
)

// none is a host without control groups for this user: nothing is limited, nothing can be frozen.
type none struct{ note string }

func (none) Version() Version                     { return None }
func (none) Enforces(Controller) bool             { return false }
func (none) CanFreeze() bool                      { return false }
func (n none) Note() string                       { return n.note }
func (none) Create(string, Limits) (Group, error) { return noGroup{}, nil }
func (none) Open(string) Group                    { return noGroup{} }
func (none) List() ([]string, error)              { return nil, nil }
func (none) Remove() error                        { return nil }

type noGroup struct{}

func (noGroup) Start(cmd *exec.Cmd) error                               { return cmd.Start() }
func (noGroup) SetLimits(Limits) error                                  { return nil }
func (noGroup) Pids() ([]int, error)                                    { return nil, nil }
func (noGroup) Kill(context.Context) error                              { return nil }
func (noGroup) Freeze(context.Context) error                            { return ErrUnsupported }
func (noGroup) Thaw(context.Context) error                              { return ErrUnsupported }
func (noGroup) Frozen() (bool, error)                                   { return false, nil }
func (noGroup) Usage() (Usage, error)                                   { return Usage{}, ErrUnsupported }
func (noGroup) OOMKills() (int64, error)                                { return 0, nil }
func (noGroup) WatchMemory(context.Context, int64, func(current int64)) {}
func (noGroup) Remove() error                                           { return nil }
func (noGroup) Exists() bool                                            { return false }
func (noGroup) Location() Location                                      { return Location{Version: None} }
