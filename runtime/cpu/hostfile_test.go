package cpu

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/runtime"
)

// TestFullDiskKeepsHostArena: if the file of a host arena cannot grow, that is an error, and the arena stays as it was.
// The program that it was to grow for is not loaded, but others still use it.
func TestFullDiskKeepsHostArena(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	b, err := New(Options{Threads: 1, HostDir: t.TempDir()})
	require.NoError(t, err)
	devices, err := b.Open(runtime.World{Ranks: 1, Timeout: time.Minute})
	require.NoError(t, err)
	d := devices[0].(*Device)
	defer d.Close()

	name := filepath.Join(t.TempDir(), "host")
	file, err := os.Create(name)
	require.NoError(t, err)
	d.file.file = file
	require.NoError(t, d.Alloc(runtime.OnHost, 1000))
	data, got := []byte("what was there"), make([]byte, 14)
	require.NoError(t, d.Upload(runtime.OnHost, 64, data))

	d.file.file, err = os.Open(name) // writes fail, as on a full disk
	require.NoError(t, err)
	require.Error(t, d.Alloc(runtime.OnHost, 1<<20))
	require.NotPanics(t, func() { require.NoError(t, d.Download(got, runtime.OnHost, 64)) })
	require.Equal(t, data, got)

	require.NoError(t, d.file.file.Close())
	d.file.file = file
	require.NoError(t, d.Alloc(runtime.OnHost, 1<<20))
	require.NoError(t, d.Download(got, runtime.OnHost, 64))
	require.Equal(t, data, got)
}
