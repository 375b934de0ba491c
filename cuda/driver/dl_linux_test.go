package driver

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDlopenSaysWhy: a library that is not there is named with the reason, whichever threads goroutines
// are moved to meanwhile.
func TestDlopenSaysWhy(t *testing.T) {
	done := make(chan struct{})
	for range 2 * runtime.GOMAXPROCS(0) {
		go func() {
			for {
				select {
				case <-done:
					return
				default:
					runtime.Gosched()
				}
			}
		}()
	}
	defer close(done)
	for range 40000 {
		_, err := dlopen("/nowhere/libcuda.so")
		require.ErrorContains(t, err, "/nowhere/libcuda.so")
	}
}
