//go:build !linux

package fake

// thread returns the same for all threads on systems that do not number them: a context is then
// current on all.
func thread() int { return 0 }
