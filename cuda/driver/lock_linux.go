package driver

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// lockFile locks a file, which it makes if there is none, until unlock is called or the process ends. It
// waits for other processes up to a bound. It fails too if the file system has no locks.
func lockFile(path string, bound time.Duration) (unlock func(), ok bool) {
	if os.MkdirAll(filepath.Dir(path), 0o755) != nil {
		return nil, false
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, false
	}
	for end := time.Now().Add(bound); ; time.Sleep(time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, true
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(end) {
			f.Close()
			return nil, false
		}
	}
}
