package train

import (
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/autopar/autopar/checkpoint"
)

// Memory for the copy from which checkpoints are written in the background: whether it fits on
// every machine, before any rank has written its arenas.

// room is what a process knows about memory before its ranks write anything. All in bytes.
type room struct {
	Copy   int64 // what is missing of this process's copy
	Arenas int64 // what the arenas of its ranks will take of the machine's memory
	Spare  int64 // what all processes of the machine may still take
}

func (r *run) findRoom(s checkpoint.Snapshot) (room, error) {
	missing, err := r.memory.Missing(s)
	arenas := r.exec.Unwritten()
	spare, ok := spareMemory(r.opts.host)
	if !ok {
		spare = arenas + arenas/4 // nothing is known: assume that the arenas fit, and a copy that is small beside them
	}
	return room{missing, arenas, spare}, err
}

// shareRoom makes checkpoints blocking, and says so, if the copies do not fit on some machine. All
// processes come to the same conclusion, because they have the same data.
func (r *run) shareRoom(all []found) error {
	machine := func(int) int { return 0 }
	if peers := r.exec.Peers(); peers != nil {
		machine = peers.Machine
	}
	rank, m := crowded(all, machine)
	if rank < 0 {
		return nil
	}
	const mib = 1 << 20
	r.printf("checkpoints: training waits for them: a copy of %.1f MiB beside arenas of %.1f MiB does not fit in the %.1f MiB that the machine of rank %d can spare\n",
		float64(m.Copy)/mib, float64(m.Arenas)/mib, float64(max(0, m.Spare))/mib, rank)
	r.background = nil
	return r.memory.Close()
}

// crowded returns the first rank of a machine that lacks the memory its processes need together,
// and what they need; or -1. machine maps a rank to the first rank on its machine.
func crowded(all []found, machine func(rank int) int) (int, room) {
	need := make([]room, len(all))
	for rank, f := range all {
		m := &need[machine(rank)]
		if *m != (room{}) {
			f.Spare = min(f.Spare, m.Spare) // the smallest is the most recent
		}
		*m = room{m.Copy + f.Copy, m.Arenas + f.Arenas, f.Spare}
	}
	for rank, m := range need {
		if m.Copy > 0 && m.Copy > m.Spare-m.Arenas {
			return rank, m
		}
	}
	return -1, room{}
}

// spareMemory returns how many bytes the processes of this machine may still take if a tenth of the
// memory stays free: the least of what Linux reports as available and what the control groups
// (version 2 or 1) leave this process. known is false if neither can be read.
func spareMemory(host fs.FS) (spare int64, known bool) {
	spare = math.MaxInt64
	bound := func(all, free int64) { spare, known = min(spare, free-all/10), true }
	memory := numbers(host, "proc/meminfo") // in units of 1024 bytes
	if free, ok := memory["MemAvailable:"]; ok {
		bound(memory["MemTotal:"]<<10, free<<10)
	}
	groups, _ := fs.ReadFile(host, "proc/self/cgroup") // without the file, no group limits
	for line := range strings.Lines(string(groups)) {
		_, line, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(line, ":")
		root, limit, used, idle := "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
		if controllers != "" {
			if !slices.Contains(strings.Split(controllers, ","), "memory") {
				continue
			}
			root, limit, used, idle = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
		}
		// Enclosing groups limit it too. In a container only those within it are visible.
		for dir := path.Join(root, path.Clean("/"+group)); len(dir) >= len(root); dir = path.Dir(dir) {
			all, limited := number(host, path.Join(dir, limit))
			taken, told := number(host, path.Join(dir, used))
			if limited && told {
				bound(all, all-taken+numbers(host, path.Join(dir, "memory.stat"))[idle]) // the page cache of files can be reclaimed
			}
		}
	}
	return spare, known
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
