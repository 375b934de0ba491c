package wholefile

import (
	"os"
	"syscall"
)

// lock takes a file for this process until it is closed, or fails: another has it, or the file system knows no locks.
func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
