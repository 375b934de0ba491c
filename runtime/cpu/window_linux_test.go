package cpu

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestProcessorsOfOthers: processes that a launcher has bound to different processors each use all
// of theirs.
func TestProcessorsOfOthers(t *testing.T) {
	var all unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &all))
	var pids []int
	for cpu := 0; len(pids) < 2; cpu++ {
		if cpu == 1024 {
			t.Skip("there are no two processors")
		}
		if !all.IsSet(cpu) {
			continue
		}
		child := exec.Command("cat")
		in, err := child.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, child.Start())
		t.Cleanup(func() {
			require.NoError(t, in.Close())
			require.NoError(t, child.Wait())
		})
		var one unix.CPUSet
		one.Set(cpu)
		require.NoError(t, unix.SchedSetaffinity(child.Process.Pid, &one))
		pids = append(pids, child.Process.Pid)
	}
	require.False(t, overlap(pids[0], pids[1]))
	require.True(t, overlap(pids[0], pids[0]))
	require.NoError(t, unix.SchedSetaffinity(pids[1], &all))
	require.True(t, overlap(pids[0], pids[1]))

	for _, c := range []struct {
		beside     []int
		self       int
		processors int
		want       int
	}{
		{[]int{3}, 3, 8, 8}, {[]int{2, 3}, 2, 7, 4}, {[]int{2, 3}, 3, 7, 3}, {[]int{0, 1, 2, 3}, 3, 2, 1},
	} {
		o := &others{local: []int{0, 1, 2, 3}, beside: c.beside, self: c.self}
		require.Equal(t, c.want, o.share(c.processors), "rank %d beside %v, %d processors", c.self, c.beside, c.processors)
	}
}
