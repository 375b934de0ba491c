package launch

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
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

// suspensions returns a channel that receives the terminal's ^Z, which processes do not get themselves.
func suspensions() chan os.Signal {
	asked := make(chan os.Signal, 1)
	if !signal.Ignored(syscall.SIGTSTP) {
		signal.Notify(asked, syscall.SIGTSTP)
	}
	return asked
}

// suspend stops the processes and their agent, until that is continued.
func suspend(running []*exec.Cmd) {
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	for _, cmd := range running {
		_ = cmd.Process.Signal(syscall.SIGSTOP) // an error only says that it has ended
	}
	if syscall.Kill(os.Getpid(), syscall.SIGSTOP) == nil {
		<-continued
	}
	for _, cmd := range running {
		_ = cmd.Process.Signal(syscall.SIGCONT)
	}
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
