package launch

import "syscall"

// interrupts says that the processes do not get the terminal's interrupt themselves.
const interrupts = true

// childAttr has a process end with the agent, and take interrupts from the agent alone.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
