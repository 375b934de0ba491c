package wholefile

import (
	"os"
	"syscall"
)

// lock locks a file for this process until it is closed. It fails if another process has the lock
// or the file system has no locks.
func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
