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
)

// hostWith is a machine on which processes can take this many more bytes.
func hostWith(spare int64) fs.FS {
	return files(map[string]string{
		"proc/self/cgroup":             "0::/job",
		"sys/fs/cgroup/memory.max":     fmt.Sprintln(10 * spare),
		"sys/fs/cgroup/memory.current": fmt.Sprintln(8 * spare), // besides a tenth of all
	})
}

func files(text map[string]string) fs.FS {
	all := fstest.MapFS{}
	for name, s := range text {
		all[name] = &fstest.MapFile{Data: []byte(s)}
	}
	return all
}

func TestSpareMemory(t *testing.T) {
	const meminfo = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\nHugePages_Total:   0\n"
	for name, c := range map[string]struct {
		host map[string]string
		want int64 // -1 if unknown
	}{
		"another system": {nil, -1},
		"old":            {map[string]string{"proc/meminfo": "MemTotal: 1000 kB\nMemFree: 600 kB\n"}, -1},
		"no groups":      {map[string]string{"proc/meminfo": meminfo}, 500 << 10},
		"no limit": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "7\n",
		}, 500 << 10},
		"version 2": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "300000\n", "sys/fs/cgroup/a/b/memory.current": "100000\n",
			"sys/fs/cgroup/a/b/memory.stat": "anon 40000\ninactive_file 60000\nactive_file 1\n",
		}, 230000},
		"around it": {map[string]string{
			"proc/self/cgroup":             "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "300000\n", "sys/fs/cgroup/a/b/memory.current": "100000\n",
			"sys/fs/cgroup/a/memory.max": "200000\n", "sys/fs/cgroup/a/memory.current": "150000\n",
		}, 30000},
		"of a container": {map[string]string{
			"proc/self/cgroup":         "0::/../../docker/1f\n",
			"sys/fs/cgroup/memory.max": "1000\n", "sys/fs/cgroup/memory.current": "400\n",
		}, 500},
		"version 1": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "5:cpu:/a\n4:rdma,memory:/a\n0::/\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "200000\n", "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "150000\n",
			"sys/fs/cgroup/memory/a/memory.stat":         "inactive_file 3\ntotal_inactive_file 20000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "900000\n",
		}, 50000},
		"full": {map[string]string{"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 50 kB\n"}, -50 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			got, known := spareMemory(files(c.host))
			require.Equal(t, c.want != -1, known)
			if known {
				require.Equal(t, c.want, got)
			}
		})
	}
	if goruntime.GOOS == "linux" {
		_, known := spareMemory(os.DirFS("/"))
		require.True(t, known, "of this machine")
	}
}

// TestCrowded: the needs of all processes of a machine count together, against the least spare
// memory that any of them was told.
func TestCrowded(t *testing.T) {
	fits := func(machines []int, rooms ...room) int {
		var all []found
		for _, r := range rooms {
			all = append(all, found{room: r})
		}
		rank, _ := crowded(all, func(rank int) int { return machines[rank] })
		return rank
	}
	for _, c := range []struct {
		want     int
		machines []int
		rooms    []room
	}{
		{-1, []int{0}, []room{{10, 90, 100}}},
		{0, []int{0}, []room{{10, 90, 99}}},
		{0, []int{0}, []room{{10, 0, -1}}},
		{-1, []int{0}, []room{{0, 90, 10}}}, // it has the copy already
		{-1, []int{0, 1}, []room{{10, 90, 150}, {10, 90, 150}}},
		{0, []int{0, 0}, []room{{10, 90, 150}, {10, 90, 150}}},
		{0, []int{0, 0}, []room{{10, 90, 200}, {10, 90, 199}}},
		{0, []int{0, 0}, []room{{10, 90, 199}, {10, 90, 200}}},
		{2, []int{0, 0, 2, 2}, []room{{10, 90, 200}, {10, 90, 200}, {10, 90, 200}, {11, 90, 200}}},
		{1, []int{0, 1, 0}, []room{{10, 90, 200}, {10, 91, 100}, {10, 90, 200}}},
	} {
		require.Equal(t, c.want, fits(c.machines, c.rooms...), "%v on %v", c.rooms, c.machines)
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
