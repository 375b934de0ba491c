package fake

import "syscall"

// thread returns the number of the calling thread: a context is current on one thread.
func thread() int { return syscall.Gettid() }
