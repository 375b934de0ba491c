//go:build !linux

package fake

// thread is one for all where threads have no names: a context is then current for all.
func thread() int { return 0 }
