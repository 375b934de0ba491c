package driver

import (
	"os"
	"runtime"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
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

// TestNCCLStartsInOrder: NCCL finds in its environment, which is that of C, that it starts operations in the order of calls, unless
// the user says otherwise.
func TestNCCLStartsInOrder(t *testing.T) {
	var missing error
	getenv := loadFakes(t).lib.proc("getenv", &missing) // of libc, which the library needs
	require.NoError(t, missing)
	t.Setenv(libNCCL.variable, "/nowhere/libnccl.so.2")
	for user, want := range map[string]string{"": "1", "0": "0"} {
		t.Setenv(launchOrder, user)
		if user == "" {
			require.NoError(t, os.Unsetenv(launchOrder))
		}
		_, err := NewCollectives()
		require.ErrorContains(t, err, "libnccl")
		value, _, _ := purego.SyscallN(getenv.addr, uintptr(unsafe.Pointer(zero(launchOrder))))
		require.Equal(t, want, goString(value))
	}
}
