package train

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/runtime"
)

// hostWith is a machine on which processes can take this many more bytes.
func hostWith(spare int64) fs.FS {
	return files(map[string]string{
		"proc/self/cgroup":             "0::/job",
		"sys/fs/cgroup/memory.max":     fmt.Sprintln(10 * spare),
		"sys/fs/cgroup/memory.current": fmt.Sprintln(8 * spare), // besides a tenth of all
		"sys/fs/cgroup/memory.stat":    fmt.Sprintln("active_file", 1<<40),
	})
}

// hostWithFree is a machine of which no more is free.
func hostWithFree(free int64) fs.FS {
	return files(map[string]string{"proc/meminfo": fmt.Sprintf("MemTotal: %d kB\nMemAvailable: %d kB\n", free>>9, free>>10)})
}

func files(text map[string]string) fs.FS {
	all := fstest.MapFS{}
	for name, s := range text {
		all[name] = &fstest.MapFile{Data: []byte(s)}
	}
	return all
}

// TestCrowded: the needs of all processes of a machine count together, against the least spare
// memory that any of them was told.
func TestCrowded(t *testing.T) {
	fits := func(on []int, rooms ...[3]int64) int {
		var all []found
		for _, r := range rooms {
			all = append(all, found{room: room{r[0], r[1], runtime.HostMemory{Spare: r[2]}}})
		}
		return crowded(machines(all, func(rank int) int { return on[rank] }))
	}
	for _, c := range []struct {
		want  int
		on    []int      // of each rank, the first rank on its machine
		rooms [][3]int64 // copy, arenas and spare memory
	}{
		{-1, []int{0}, [][3]int64{{10, 90, 100}}},
		{0, []int{0}, [][3]int64{{10, 90, 99}}},
		{0, []int{0}, [][3]int64{{10, 0, -1}}},
		{-1, []int{0}, [][3]int64{{0, 90, 10}}}, // it has the copy already
		{-1, []int{0, 1}, [][3]int64{{10, 90, 150}, {10, 90, 150}}},
		{0, []int{0, 0}, [][3]int64{{10, 90, 150}, {10, 90, 150}}},
		{0, []int{0, 0}, [][3]int64{{10, 90, 200}, {10, 90, 199}}},
		{0, []int{0, 0}, [][3]int64{{10, 90, 199}, {10, 90, 200}}},
		{2, []int{0, 0, 2, 2}, [][3]int64{{10, 90, 200}, {10, 90, 200}, {10, 90, 200}, {11, 90, 200}}},
		{1, []int{0, 1, 0}, [][3]int64{{10, 90, 200}, {10, 91, 100}, {10, 90, 200}}},
	} {
		require.Equal(t, c.want, fits(c.on, c.rooms...), "%v on %v", c.rooms, c.on)
	}
}

const (
	waits      = "checkpoints: training waits for them: a copy of "
	background = "checkpoints: written while training goes on"
)

// TestCopyHasRoom: if the copy does not fit beside the arenas, to the byte, the run saves without
// one, and says so.
func TestCopyHasRoom(t *testing.T) {
	cfg, plan := tinyConfig(t, textData(t)), planOf(2, 1, 1)
	job := newJob(t, cfg, plan)
	snap, err := job.Snapshot(0)
	require.NoError(t, err)
	copied, err := checkpoint.NewMemory(nil).Missing(snap)
	require.NoError(t, err)
	arenas := job.exec.Unwritten()
	require.Equal(t, 2*job.Train.Stages[0].Arena(), arenas)

	roomy, tight := t.TempDir(), t.TempDir()
	_, log := train(t, cfg, plan, RunOptions{Out: roomy, host: hostWith(arenas + copied)})
	require.Contains(t, log, background)
	require.NotContains(t, log, waits)
	_, log = train(t, cfg, plan, RunOptions{Out: tight, host: hostWith(arenas + copied - 1)})
	const mib = 1 << 20
	require.Contains(t, log, fmt.Sprintf("%s%.1f MiB beside arenas of %.1f MiB does not fit in the %.1f MiB that the machine of rank 0 can spare\n",
		waits, float64(copied)/mib, float64(arenas)/mib, float64(arenas+copied-1)/mib))
	require.NotContains(t, log, background)
	require.Equal(t, contents(t, roomy), contents(t, tight))
	_, log = train(t, cfg, plan, RunOptions{Out: tight, Blocking: true, host: hostWith(0)})
	require.NotContains(t, log, "checkpoints:")
	_, log = train(t, cfg, plan, RunOptions{host: hostWith(0)})
	require.NotContains(t, log, "checkpoints:")
}

// TestArenasHaveRoom: arenas of more than is free end a run before any is written, of one process and of several on a machine.
func TestArenasHaveRoom(t *testing.T) {
	cfg, plan := tinyConfig(t, textData(t)), planOf(2, 1, 1)
	arenas := newJob(t, cfg, plan).exec.Unwritten()
	free := arenas >> 10 << 10 // the system counts in units of 1024 bytes
	train(t, cfg, plan, RunOptions{Steps: 1, host: hostWithFree(free + 1024)})
	full := hostWithFree(free - 1024)
	_, err := newJob(t, cfg, plan).Run(t.Context(), RunOptions{Steps: 1, host: full})
	var none *runtime.MemoryError
	require.ErrorAs(t, err, &none)
	require.Equal(t, runtime.MemoryError{Needs: arenas, Free: free - 1024}, *none)

	cfg, plan = tinyConfig(t, textData(t)), planOf(1, 2, 1) // whose ranks have arenas of different sizes
	arenas = newJob(t, cfg, plan).exec.Unwritten()
	free = arenas >> 10 << 10
	_, err = trainProcesses(t, cfg, plan, RunOptions{Steps: 1, host: hostWithFree(free + 1024)}, make([]*os.File, 2), plain)
	require.NoError(t, err)
	_, err = trainProcesses(t, cfg, plan, RunOptions{Steps: 1, host: hostWithFree(free - 1024)}, make([]*os.File, 2), plain)
	require.ErrorAs(t, err, &none)
	require.Equal(t, arenas, none.Needs+none.Others)
	require.NotZero(t, none.Others)
}

// TestRoomNotKnown: on other systems a copy fits if it is at most a quarter of the arenas.
func TestRoomNotKnown(t *testing.T) {
	for batch, want := range map[int]string{2: waits, 60: background} {
		cfg, plan := tinyConfig(t, textData(t), fmt.Sprintf("batch.global=%d", batch)), planOf(1, 1, 1)
		plan.MicroBatch = batch
		_, log := train(t, cfg, plan, RunOptions{Out: t.TempDir(), Steps: 1, host: files(nil)})
		require.Contains(t, log, want, "batch of %d", batch)
	}
}

// TestCopiesHaveRoom: processes of a machine share its spare memory, and a copy that a process
// finds there needs no more.
func TestCopiesHaveRoom(t *testing.T) {
	if goruntime.GOOS != "linux" {
		t.Skip("memory outlives a process on Linux alone")
	}
	cfg, plan := tinyConfig(t, textData(t)), planOf(1, 2, 1)
	job := newJob(t, cfg, plan)
	all := job.exec.Unwritten() // the copies need less
	memory := make([]*os.File, 2)
	for rank := range memory {
		var err error
		memory[rank], err = os.Create(filepath.Join(t.TempDir(), "memory"))
		require.NoError(t, err)
		defer memory[rank].Close()
	}
	run := func(out string, spare int64, resume bool) string {
		log, err := trainProcesses(t, cfg, plan, RunOptions{Out: out, Steps: 7, Resume: resume, host: hostWith(spare)}, memory, plain)
		require.NoError(t, err)
		return log
	}
	tight, roomy := t.TempDir(), t.TempDir()
	require.Contains(t, run(tight, all, false), waits, "of which either would fit alone")
	require.Contains(t, run(roomy, 2*all, false), background)
	require.Equal(t, contents(t, roomy), contents(t, tight))
	require.Contains(t, run(roomy, 0, true), "resuming at iteration 7 from memory")
}
