package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/runtime/cpu/profile"
)

// opTime is the time of one op, averaged over ranks. The time of collectives and receives includes waiting for other ranks; if
// there are more ranks than processors, the time of any op includes waiting for a processor. The op "idle" is the time in which
// a rank runs no instruction.
type opTime struct {
	Op    string  `json:"op"`
	Calls float64 `json:"calls_per_step"` // of one rank
	MS    float64 `json:"ms_per_step"`
	Share float64 `json:"share"` // of the step
	// Rates of all ranks together, of the work that the cost model counts: operations, and bytes of memory, or for a collective
	// the bytes of its tensors.
	GFLOPS float64 `json:"gflops,omitempty"`
	GBs    float64 `json:"gb_per_s,omitempty"`
	// Roofline is the time of this work at the measured peaks over the time that it took (Williams, Waterman and Patterson,
	// "Roofline", 2009). It can exceed 1 for data that stays in a cache, and for products on matrix units.
	Roofline float64 `json:"roofline,omitempty"`
}

// rate sets the rates of an op from its work in a step of all ranks.
func (o *opTime) rate(w cost.Work, peaks profile.Peaks) {
	seconds := o.MS / 1e3
	if seconds == 0 {
		return
	}
	o.GFLOPS, o.GBs = w.FLOPs/seconds/1e9, float64(w.Bytes)/seconds/1e9
	if w.Class != "collective" { // the bytes of collectives are not traffic of memory
		o.Roofline = max(w.FLOPs/peaks.FLOPS, float64(w.Bytes)/peaks.Bandwidth) / seconds
	}
}

// cells are the op's row of the table.
func (o *opTime) cells() []string {
	some := func(x, unit float64, format string) string {
		if x == 0 {
			return ""
		}
		return fmt.Sprintf(format, x*unit)
	}
	return []string{
		o.Op, fmt.Sprintf("%.3f", o.MS), percentText(o.Share), fmt.Sprintf("%.4g", o.Calls),
		some(o.GFLOPS, 1, "%.4g"), some(o.GBs, 1, "%.3g"), some(o.Roofline, 100, "%.0f %%"),
	}
}

// workOf adds up what each op of a step does, on all ranks.
func workOf(prog *codegen.Program, cluster *cost.Cluster) map[string]cost.Work {
	price := cost.NewProgram(cluster, prog.Plan, prog.Mesh)
	all := map[string]cost.Work{}
	for r := range prog.Schedules {
		s := &prog.Schedules[r]
		for _, task := range s.Tasks {
			instrs := prog.Stages[s.Stage].Run(task)
			for i := range instrs {
				in := &instrs[i]
				if !s.Runs(in, task) {
					continue
				}
				w := price.WorkOf(instrs[i:i+1], prog.Mesh, s.Coord)
				sum := all[in.Node.Op.String()]
				sum.Class, sum.FLOPs, sum.Bytes = w.Class, sum.FLOPs+w.FLOPs, sum.Bytes+w.Bytes
				all[in.Node.Op.String()] = sum
			}
		}
	}
	return all
}

// peakMemory returns the peak resident memory of the process, in bytes, or 0 if it is unknown.
func peakMemory() int64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}

// peakBudget is how long the machine's peaks are measured.
const peakBudget = 400 * time.Millisecond

// peaksOf returns the peaks of the cluster that a plan was made for.
func peaksOf(doc *planner.Document) profile.Peaks {
	c := doc.Cluster
	return profile.Peaks{FLOPS: c.JobFLOPS(doc.Config.DType().String(), doc.Plan), Bandwidth: c.Device.MemoryBandwidth * float64(doc.Plan.RuntimeNGPUs)}
}
