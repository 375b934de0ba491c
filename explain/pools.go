package explain

import (
	"fmt"
	"io"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// StageDevices says which devices a stage runs on, in a cluster with several kinds (pools) of devices.
type StageDevices struct {
	Stage   int    `json:"stage"`
	Devices string `json:"devices"` // every pool that its ranks lie on, and the pool's cluster
	Blocks  int    `json:"blocks"`
	// Busy is the share of the step in which the stage's first rank does not wait.
	Busy  float64 `json:"busy"`
	Peak  int64   `json:"peak_bytes"`  // of a rank
	Limit int64   `json:"limit_bytes"` // memory of the smallest of its devices
}

// stageDevices lists the devices of every stage; it is nil if the cluster has one kind.
func (r *Report) stageDevices(c *cost.Cluster) []StageDevices {
	if len(c.Pools) == 0 {
		return nil
	}
	p := r.prog.Plan
	var all []StageDevices
	for i, st := range r.Stages {
		first := r.Prediction.Ranks[p.WorldRank(i, 0)]
		all = append(all, StageDevices{
			Stage: i, Devices: c.KindText(p, i), Blocks: len(st.Blocks), Busy: 1 - first.Bubble/r.Prediction.StepSeconds,
			Peak: st.Memory.Arena, Limit: limitAt(c, p, i, c.MemoryUnder(int64(r.cfg.Parallel.MemoryLimit), p.RuntimeNGPUs)),
		})
	}
	return all
}

// devicesText prints on what each stage runs, how full its memory is, and how busy it is. The stage that waits least limits
// the others.
func (p *Prediction) devicesText(out io.Writer) {
	if len(p.Devices) == 0 {
		return
	}
	var rows [][]string
	for _, d := range p.Devices {
		rows = append(rows, []string{
			fmt.Sprint(d.Stage), Count(d.Blocks, "block"), fmt.Sprintf("busy %.1f%%", 100*d.Busy), Bytes(d.Peak) + " of " + Bytes(d.Limit),
			fmt.Sprintf("%.1f%%", 100*float64(d.Peak)/float64(d.Limit)), d.Devices,
		})
	}
	table(out, "stages on their devices: blocks, time, peak memory of a rank and what it may take", rows, 1, 2, 3, 4)
}

// limitAt is the memory that a rank of a stage may use, in bytes: at most limit, which holds for all ranks.
func limitAt(c *cost.Cluster, p *partition.Plan, stage int, limit int64) int64 {
	if len(c.Pools) == 0 {
		return limit
	}
	return min(limit, c.MemoryAt(p, stage))
}

// tightest returns the stage with the least memory left under a limit for all ranks, and the bytes that its ranks may
// use.
func (r *Report) tightest(limit int64) (*Stage, int64) {
	at, most := r.Stages[0], int64(0)
	for i, st := range r.Stages {
		if l := limitAt(r.Prediction.cluster, r.prog.Plan, i, limit); i == 0 || l-st.Memory.Arena < most-at.Memory.Arena {
			at, most = st, l
		}
	}
	return at, most
}
