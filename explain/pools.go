package explain

import (
	"fmt"
	"io"

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
			Peak: st.Memory.Arena, Limit: r.Prediction.at(i),
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
