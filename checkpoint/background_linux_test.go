package checkpoint

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStoppedProcessIsNotLate: a process that is stopped for longer than writing may take, as by ^Z, goes on waiting.
func TestStoppedProcessIsNotLate(t *testing.T) {
	b := &Background{Dir: t.TempDir(), Memory: NewMemory(nil)}
	writing := make(chan written)
	b.writing, b.bound = writing, 2*time.Second
	go func() {
		err := exec.Command("sh", "-c", fmt.Sprintf("kill -STOP %[1]d; sleep 3; kill -CONT %[1]d", os.Getpid())).Run()
		writing <- written{"step", err}
	}()
	began := time.Now()
	require.NoError(t, b.Wait())
	require.Greater(t, time.Since(began), b.bound)
	require.NoError(t, b.Close())
}
