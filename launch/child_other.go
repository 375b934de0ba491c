//go:build !linux

package launch

import "syscall"

// interrupts says that the processes do not get the terminal's interrupt themselves.
const interrupts = false

func childAttr() *syscall.SysProcAttr { return nil }
