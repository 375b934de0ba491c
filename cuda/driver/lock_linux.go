package driver

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// lockFile locks a file, which it makes if there is none, until unlock is called or the process ends. It is busy if
// another process has the lock. Where files cannot be made or locked, nobody has it, and unlock does nothing.
func lockFile(path string) (unlock func(), busy bool) {
	if os.MkdirAll(filepath.Dir(path), 0o755) != nil {
		return func() {}, false
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return func() {}, false
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return func() {}, errors.Is(err, syscall.EWOULDBLOCK)
	}
	return func() { f.Close() }, false
}
