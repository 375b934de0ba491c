package launch

import (
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// interrupts says that the agent must pass interrupts on, because processes do not get the
// terminal's themselves.
const interrupts = true

// childAttr makes a process end with its agent, and get interrupts from the agent alone.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// inherited returns the file of a listener, which a process may be given.
func inherited(l net.Listener) (*os.File, error) { return l.(*net.TCPListener).File() }

// newMemory makes a file in memory without a name, which exists while a process has it open.
func newMemory(local int) (*os.File, error) {
	name := fmt.Sprint("autopar-snapshot-", local)
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
