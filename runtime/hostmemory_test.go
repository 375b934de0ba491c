package runtime_test

import (
	"os"
	goruntime "runtime"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/runtime"
)

// TestHostMemory: what Linux has available, and what is left of control groups; of caches of files only idle ones are to spare.
func TestHostMemory(t *testing.T) {
	const meminfo = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\nSwapFree:        200 kB\nHugePages_Total:   0\n"
	for name, c := range map[string]struct {
		host        map[string]string
		spare, free int64 // -1 if unknown
	}{
		"another system": {nil, -1, -1},
		"old":            {map[string]string{"proc/meminfo": "MemTotal: 1000 kB\nMemFree: 600 kB\n"}, -1, -1},
		"no groups":      {map[string]string{"proc/meminfo": meminfo}, 500 << 10, 800 << 10},
		"no limit": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "7\n",
		}, 500 << 10, 800 << 10},
		"version 2": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "300000\n", "sys/fs/cgroup/a/b/memory.current": "100000\n",
			"sys/fs/cgroup/a/b/memory.stat": "anon 40000\ninactive_file 60000\nactive_file 1000\n",
		}, 230000, 261000},
		"around it": {map[string]string{
			"proc/self/cgroup":             "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "300000\n", "sys/fs/cgroup/a/b/memory.current": "100000\n",
			"sys/fs/cgroup/a/memory.max": "200000\n", "sys/fs/cgroup/a/memory.current": "150000\n",
		}, 30000, 50000},
		"of a container": {map[string]string{
			"proc/self/cgroup":         "0::/../../docker/1f\n",
			"sys/fs/cgroup/memory.max": "1000\n", "sys/fs/cgroup/memory.current": "400\n",
		}, 500, 600},
		"version 1": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "5:cpu:/a\n4:rdma,memory:/a\n0::/\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "200000\n", "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "150000\n",
			"sys/fs/cgroup/memory/a/memory.stat":         "inactive_file 3\ntotal_inactive_file 20000\nactive_file 5\ntotal_active_file 700\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "900000\n",
		}, 50000, 70700},
		"no limit, and more files than are used": {map[string]string{
			"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 600 kB\n", "proc/self/cgroup": "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "900000\n",
			"sys/fs/cgroup/memory/memory.stat": "total_inactive_file 800000\ntotal_active_file 700000\n",
		}, 500 << 10, 600 << 10},
		"full": {map[string]string{"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 50 kB\n"}, -50 << 10, 50 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			host := fstest.MapFS{}
			for name, text := range c.host {
				host[name] = &fstest.MapFile{Data: []byte(text)}
			}
			got, known := runtime.ReadHostMemory(host)
			require.Equal(t, c.free != -1, known)
			if known {
				require.Equal(t, runtime.HostMemory{Free: c.free, Spare: c.spare}, got)
			}
		})
	}
	if goruntime.GOOS == "linux" {
		_, known := runtime.ReadHostMemory(os.DirFS("/"))
		require.True(t, known, "of this machine")
	}
}
