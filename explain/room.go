package explain

import (
	"fmt"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// Room is what the ranks of a plan may use of the memory of their devices, and whether the plan fits into that.
type Room struct {
	Memory int64 `json:"memory"` // bytes that a rank may use
	// Memories has the same for each stage, if the cluster has several kinds of devices; Memory is then the largest.
	Memories []int64 `json:"memories,omitempty"`
	Fits     bool    `json:"fits"`
}

// room returns what the ranks of a plan may use on a cluster, of which those of each stage need peaks.
func room(c *cost.Cluster, cfg *config.Config, p *partition.Plan, peaks []int64) Room {
	r := Room{Memory: c.MemoryUnder(int64(cfg.Parallel.MemoryLimit), p.RuntimeNGPUs)}
	if len(c.Pools) > 0 {
		for stage := range p.PP() {
			r.Memories = append(r.Memories, min(r.Memory, c.MemoryAt(p, stage)))
		}
	}
	_, left := r.tightest(peaks)
	r.Fits = left >= 0
	return r
}

// at is what a rank of a stage may use.
func (r *Room) at(stage int) int64 {
	if r.Memories == nil {
		return r.Memory
	}
	return r.Memories[stage]
}

// tightest returns the stage with the least memory left, and how many bytes are left. The number is negative if the stage
// does not fit.
func (r *Room) tightest(peaks []int64) (stage int, left int64) {
	for i, peak := range peaks {
		if l := r.at(i) - peak; i == 0 || l < left {
			stage, left = i, l
		}
	}
	return stage, left
}

// verdict says whether the plan fits.
func (r *Room) verdict(peaks []int64) string {
	stage, left := r.tightest(peaks)
	memory := r.at(stage)
	switch {
	case r.Fits && r.Memories == nil:
		return fmt.Sprintf("it fits: stage %d, which needs the most, leaves %s bytes of a rank's %s", stage, Grouped(left), Grouped(memory))
	case r.Fits:
		return fmt.Sprintf("it fits: stage %d, which leaves the least, leaves %s bytes of a rank's %s", stage, Grouped(left), Grouped(memory))
	}
	return fmt.Sprintf("it does not fit: stage %d needs %s bytes, %s more than the %s that a rank has; plan again",
		stage, Grouped(memory-left), Grouped(-left), Grouped(memory))
}
