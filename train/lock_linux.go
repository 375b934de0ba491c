package train

import (
	"errors"
	"os"
	"syscall"
)

// taken reports whether another process holds a file, which is held from now on if not, until it is closed. What a file
// system without locks says counts as no.
func taken(f *os.File) bool {
	return errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}
