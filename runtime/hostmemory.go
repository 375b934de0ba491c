package runtime

import (
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// MemoryError says that arenas need more memory than a machine has free.
type MemoryError struct {
	Rank                int
	Needs, Others, Free int64 // bytes of the rank, of other ranks of its machine, and of the machine
}

func (e *MemoryError) Error() string {
	beside := ""
	if e.Others > 0 {
		beside = fmt.Sprintf(" beside the %s of others", GiB(e.Others))
	}
	return fmt.Sprintf("rank %d needs %s%s on its machine, which has %s free; plan with --memory-limit for what is there", e.Rank, GiB(e.Needs), beside, GiB(e.Free))
}

// GiB writes a number of bytes.
func GiB(bytes int64) string { return fmt.Sprintf("%.4g GiB", float64(bytes)/(1<<30)) }

// HostMemory is what the processes of this machine may still take of its memory, in bytes.
type HostMemory struct {
	// Free is the most that there may be, with swap space and with all that is cached of files.
	Free int64
	// Spare is what may be taken without harm: a tenth of the memory stays free, and what was read from files lately.
	Spare int64
}

// unlimited is less than the limit that version 1 of control groups states where there is none, 2^63 less a page.
const unlimited = 1 << 62

// ReadHostMemory reads it in the files of a machine: the least of what Linux reports as available and what the
// control groups (version 2 or 1) leave this process. known is false if neither can be read.
func ReadHostMemory(host fs.FS) (m HostMemory, known bool) {
	m = HostMemory{math.MaxInt64, math.MaxInt64}
	bound := func(all, free, more int64) {
		m, known = HostMemory{min(m.Free, free+more), min(m.Spare, free-all/10)}, true
	}
	memory := numbers(host, "proc/meminfo") // in units of 1024 bytes
	if free, ok := memory["MemAvailable:"]; ok {
		bound(memory["MemTotal:"]<<10, free<<10, memory["SwapFree:"]<<10)
	}
	groups, _ := fs.ReadFile(host, "proc/self/cgroup") // without the file, no group limits
	for line := range strings.Lines(string(groups)) {
		_, line, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(line, ":")
		root, limit, used, total := "sys/fs/cgroup", "memory.max", "memory.current", ""
		if controllers != "" {
			if !slices.Contains(strings.Split(controllers, ","), "memory") {
				continue
			}
			root, limit, used, total = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
		}
		// Enclosing groups limit it too. In a container only those within it are visible.
		for dir := path.Join(root, path.Clean("/"+group)); len(dir) >= len(root); dir = path.Dir(dir) {
			all, limited := number(host, path.Join(dir, limit))
			taken, told := number(host, path.Join(dir, used))
			if limited && told && all < unlimited {
				cached := numbers(host, path.Join(dir, "memory.stat")) // of files, which can be reclaimed
				bound(all, all-taken+cached[total+"inactive_file"], cached[total+"active_file"])
			}
		}
	}
	return m, known
}

// number reads a file with one number. A word, such as max, is not a number.
func number(host fs.FS, name string) (int64, bool) {
	text, err := fs.ReadFile(host, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// numbers reads a file with a name and a number on each line.
func numbers(host fs.FS, name string) map[string]int64 {
	text, _ := fs.ReadFile(host, name) // an unreadable file has no numbers
	all := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		var key string
		var n int64
		if _, err := fmt.Sscan(line, &key, &n); err == nil {
			all[key] = n
		}
	}
	return all
}
