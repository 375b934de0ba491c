package driver

import (
	"os"
	"path/filepath"
	"syscall"
)

// lockFile locks a file, which it makes if there is none, until unlock is called or the process ends. It fails if
// another process has the lock, or the file system has no locks. Then unlock does nothing.
func lockFile(path string) (unlock func(), ok bool) {
	if os.MkdirAll(filepath.Dir(path), 0o755) != nil {
		return func() {}, false
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return func() {}, false
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		f.Close()
		return func() {}, false
	}
	return func() { f.Close() }, true
}
