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

// TestNCCLIsAsked: NCCL finds in its environment, which is that of C, that it starts operations in the order of calls, and that it
// connects ranks beforehand if the process drives several GPUs, unless the user says otherwise.
func TestNCCLIsAsked(t *testing.T) {
	var missing error
	getenv := loadFakes(t).lib.proc("getenv", &missing) // of libc, which the library needs
	require.NoError(t, missing)
	t.Setenv(libNCCL.variable, "/nowhere/libnccl.so.2")
	for _, tt := range []struct {
		variable, user string
		gpus           int
		want           string
	}{
		{launchOrder, "", 1, "1"}, {launchOrder, "0", 1, "0"},
		{runtimeConnect, "", 2, "0"}, {runtimeConnect, "1", 2, "1"}, {runtimeConnect, "", 1, ""},
	} {
		t.Setenv(tt.variable, tt.user)
		if tt.user == "" {
			require.NoError(t, os.Unsetenv(tt.variable))
		}
		_, err := NewCollectives(tt.gpus)
		require.ErrorContains(t, err, "libnccl")
		value, _, _ := purego.SyscallN(getenv.addr, uintptr(unsafe.Pointer(zero(tt.variable))))
		require.Equal(t, tt.want, goString(value), "%+v", tt)
	}
}
