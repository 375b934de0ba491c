package cpu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/backendtest"
	"github.com/autopar/autopar/runtime/cpu"
)

func TestConformance(t *testing.T) {
	for name, threads := range map[string]int{"1 thread": 1, "3 threads": 3} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && threads == 1 {
				t.Skip("-short: the other has more to go wrong")
			}
			backendtest.Run(t, func(t *testing.T) runtime.Backend {
				b, err := cpu.New(cpu.Options{Threads: threads, HostDir: map[int]string{1: t.TempDir()}[threads]})
				require.NoError(t, err)
				return b
			})
		})
	}
}
