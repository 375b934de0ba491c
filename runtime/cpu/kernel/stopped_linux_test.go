package kernel

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStoppedProcessIsNotLate: a process that is stopped for longer than a wait may take, as by ^Z, goes on waiting.
func TestStoppedProcessIsNotLate(t *testing.T) {
	c := NewCores(1)
	defer c.Close()
	p := c.NewPool(0)
	var err error
	go func() {
		err = exec.Command("sh", "-c", fmt.Sprintf("kill -STOP %[1]d; sleep 3; kill -CONT %[1]d", os.Getpid())).Run()
		p.Wake()
	}()
	began := time.Now()
	require.True(t, p.Await(nil, 2*time.Second, time.NewTimer(time.Hour)))
	require.NoError(t, err)
	require.Greater(t, time.Since(began), 2*time.Second)
	p.Leave()
}
