package fake

import "syscall"

// thread names the calling thread: contexts are current on one.
func thread() int { return syscall.Gettid() }
