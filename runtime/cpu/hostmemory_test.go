package cpu_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
)

// TestArenasOfAProcess: the arenas of all ranks count together against what the machine has free, before any of it is taken.
func TestArenasOfAProcess(t *testing.T) {
	host, known := runtime.ReadHostMemory(os.DirFS("/"))
	if !known {
		t.Skip("this system does not say how much memory is free")
	}
	b, err := cpu.New(cpu.Options{})
	require.NoError(t, err)
	ds, err := b.Open(runtime.World{Ranks: 2, Timeout: time.Minute})
	require.NoError(t, err)
	defer func() {
		for _, d := range ds {
			require.NoError(t, d.Close())
		}
	}()
	most := host.Free / 5 * 3
	if err := ds[0].Alloc(runtime.OnDevice, most); err != nil {
		t.Skip(err) // less than is free may be promised
	}
	var none *runtime.MemoryError
	require.ErrorAs(t, ds[1].Alloc(runtime.OnDevice, most), &none)
	require.Equal(t, 1, none.Rank)
	require.InDelta(t, most, none.Needs, 4)
	require.InDelta(t, most, none.Others, 4)
	require.NoError(t, ds[1].Alloc(runtime.OnDevice, 1<<10), "what has room")
}
