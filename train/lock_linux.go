package train

import (
	"errors"
	"os"
	"syscall"
)

// taken reports whether another process holds a file, or with hold asks for it. With hold the file is held from now on if not,
// until it is closed. What a file system without locks says counts as no.
func taken(f *os.File, hold bool) bool {
	how := syscall.LOCK_SH // beside others that ask
	if hold {
		how = syscall.LOCK_EX
	}
	return errors.Is(syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}
