//go:build !linux

package launch

import (
	"net"
	"os"
	"os/exec"
	"syscall"
)

// interrupts says whether the agent must pass interrupts on: here processes get the terminal's
// themselves.
const interrupts = false

func childAttr() *syscall.SysProcAttr { return nil }

// suspensions returns a channel that receives nothing: processes get the terminal's ^Z themselves.
func suspensions() chan os.Signal { return make(chan os.Signal) }

func suspend([]*exec.Cmd) {}

// inherited returns nil: rank 0 opens its listener itself, if nobody else has got its port.
func inherited(net.Listener) (*os.File, error) { return nil, nil }

// newMemory returns nil: here no file without a name outlives a process.
func newMemory(int) (*os.File, error) { return nil, nil }
