package train

import (
	"math"
	"slices"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/runtime"
)

// Memory of the machines, before any rank has written its arenas: whether these fit, and whether the copy does beside
// them from which checkpoints are written in the background.

// room is what a process knows about memory before its ranks write anything. All in bytes.
type room struct {
	Copy   int64 // what is missing of this process's copy
	Arenas int64 // what the arenas of its ranks will take of the machine's memory
	runtime.HostMemory
}

func (r *run) findRoom(s checkpoint.Snapshot) (x room, err error) {
	if r.background != nil {
		if x.Copy, err = r.memory.Missing(s); err != nil {
			return x, err
		}
	}
	x.Arenas = r.exec.Unwritten()
	known := false
	if x.HostMemory, known = runtime.ReadHostMemory(r.opts.host); !known { // assume that the arenas fit, and a copy that is small beside them
		x.HostMemory = runtime.HostMemory{Free: math.MaxInt64, Spare: x.Arenas + x.Arenas/4}
	}
	return x, nil
}

// shareRoom fails if the arenas of the ranks of some machine do not fit there. If copies do not fit beside them, it makes checkpoints
// blocking, and says so. All processes come to the same conclusion, because they have the same data.
func (r *run) shareRoom(all []found) error {
	machine := func(int) int { return 0 }
	if peers := r.exec.Peers(); peers != nil {
		machine = peers.Machine
	}
	need := machines(all, machine)
	for rank, m := range need {
		if m.Arenas > m.Free {
			return &runtime.MemoryError{Rank: rank, Needs: all[rank].Arenas, Others: m.Arenas - all[rank].Arenas, Free: m.Free}
		}
	}
	rank := crowded(need)
	if r.background == nil || rank < 0 {
		return nil
	}
	const mib = 1 << 20
	m := need[rank]
	r.printf("checkpoints: training waits for them: a copy of %.1f MiB beside arenas of %.1f MiB does not fit in the %.1f MiB that the machine of rank %d can spare\n",
		float64(m.Copy)/mib, float64(m.Arenas)/mib, float64(max(0, m.Spare))/mib, rank)
	r.background = nil
	return r.memory.Close()
}

// machines adds up what the processes of each machine need together, by the first of its ranks; machine maps a rank to that. Of the
// memory they were told of it has the least, which is the most recent.
func machines(all []found, machine func(rank int) int) []room {
	need := make([]room, len(all))
	for rank, f := range all {
		m := &need[machine(rank)]
		if machine(rank) != rank {
			f.Spare, f.Free = min(f.Spare, m.Spare), min(f.Free, m.Free)
		}
		*m = room{m.Copy + f.Copy, m.Arenas + f.Arenas, f.HostMemory}
	}
	return need
}

// crowded returns the first rank of a machine that lacks the memory for copies, or -1.
func crowded(need []room) int {
	return slices.IndexFunc(need, func(m room) bool { return m.Copy > 0 && m.Copy > m.Spare-m.Arenas })
}
