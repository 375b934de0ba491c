package launch

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// interrupts says that the processes do not get the terminal's interrupt themselves.
const interrupts = true

// childAttr has a process end with the agent, and take interrupts from the agent alone.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// newMemory makes a file of memory without a name: it is there as long as a process has it open.
func newMemory(local int) (*os.File, error) {
	name := fmt.Sprint("autopar-snapshot-", local)
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
