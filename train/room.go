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

// room is what a process knows, before its ranks write anything, about memory for the copy that checkpoints are written
// from. All in bytes.
type room struct {
	Copy   int64 // of which the process has nothing yet
	Arenas int64 // of its ranks, in the memory of the machine
	Spare  int64 // of the machine, for all its processes
}

func (r *run) findRoom(s checkpoint.Snapshot) (room, error) {
	missing, err := r.memory.Missing(s)
	arenas := r.exec.Unwritten()
	spare, ok := spareMemory(r.opts.host)
	if !ok {
		spare = arenas + arenas/4 // the plan is taken to fit, and a copy that is small beside it
	}
	return room{missing, arenas, spare}, err
}

// shareRoom makes checkpoints hold the run up, and says so, if the copies do not fit on some machine. All processes come to
// the same, as they know the same of each other.
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

// crowded returns the first rank on a machine that has no room for what its processes need together, or -1. A machine is
// told by its first rank.
func crowded(all []found, machine func(rank int) int) (int, room) {
	need := make([]room, len(all))
	for rank, f := range all {
		m := &need[machine(rank)]
		if *m != (room{}) {
			f.Spare = min(f.Spare, m.Spare) // who has asked last knows best
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

// spareMemory is how many bytes more the processes of a machine can take if a tenth of all is left alone: the least of what
// Linux says is available and what the control groups, of version 2 or 1, let this process have. It is not known where
// neither is to be read.
func spareMemory(host fs.FS) (spare int64, known bool) {
	spare = math.MaxInt64
	bound := func(all, free int64) { spare, known = min(spare, free-all/10), true }
	memory := numbers(host, "proc/meminfo") // in units of 1024 bytes
	if free, ok := memory["MemAvailable:"]; ok {
		bound(memory["MemTotal:"]<<10, free<<10)
	}
	groups, _ := fs.ReadFile(host, "proc/self/cgroup") // without any, none limits
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
		// The groups around it limit it, too. Of a container's only those within are to be seen.
		for dir := path.Join(root, path.Clean("/"+group)); len(dir) >= len(root); dir = path.Dir(dir) {
			all, limited := number(host, path.Join(dir, limit))
			taken, told := number(host, path.Join(dir, used))
			if limited && told {
				bound(all, all-taken+numbers(host, path.Join(dir, "memory.stat"))[idle]) // files that were read can go
			}
		}
	}
	return spare, known
}

// number reads a file with one number; a word, as max is, is none.
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
	text, _ := fs.ReadFile(host, name) // nothing is told then
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
