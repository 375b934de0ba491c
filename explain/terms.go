package explain

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// This file divides the step of a rank twice, without remainder: by what is done (the terms), and by what
// limits it (the resources of the cluster, and memory). [Report.Predict] has the simulator add up the time
// of every instruction in a [ledger].

// Share is a named part of a step.
type Share struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// The terms into which a rank's step is divided, in the order in which they are shown. The bubble follows as the
// last one. The others are accounts of a [ledger].
const (
	termBlocks     = iota // kernels of the repeated blocks
	termHead              // kernels outside of them: embedding, head and loss
	termRecompute         // kernels run again in the backward pass
	termTensor            // exposed collectives over tp
	termContext           // over cp
	termGradients         // of gradients over the ranks that share the batch
	termParameters        // of parameters over them
	termTransfers         // between stages
	termHost              // from and to host memory
	termOptimizer
	terms
)

func termNames() []string {
	return []string{
		"kernels of the blocks", "embedding, head and loss", "recomputation", "tensor-parallel communication", "context-parallel communication",
		"reducing gradients", "gathering parameters", "transfers between stages", "copies from and to the host", "optimizer", "bubble",
	}
}

// The accounts of what binds (limits the speed) follow those of the terms: one for each resource of a cluster, and one for
// work that is done only because memory is short.
const (
	bindsResource = terms
	bindsMemory   = terms + int(cost.NumResources)
	accounts      = bindsMemory + 1
)

// memoryCapacity names the share of work that more memory would make unnecessary.
const memoryCapacity = "memory capacity"

// nudge is the relative increase of a resource's rate with which its share of an instruction's time is measured.
const nudge = 1.0 / 128

// ledger divides the time of instructions over the accounts: each instruction belongs to one term, and to the
// resources that bind it.
//
// The shares of resources follow from the price alone. A price is an amount over a rate, or a sum or maximum of such
// terms. So it is homogeneous of degree -1 in the rates of all resources together, and by Euler's theorem the
// (negated) logarithmic derivatives of the price by each rate add up to the price. The derivative by a rate is the
// share of that resource: for a kernel bound by HBM, HBM has all of the time except the launch, and arithmetic none.
// The derivatives are taken as finite differences: faster has a copy of the cluster for each resource, with the rate of
// that resource raised by nudge.
type ledger struct {
	mesh   ir.Mesh
	faster [cost.NumResources]*cost.Program
}

func newLedger(c *cost.Cluster, prog *codegen.Program) *ledger {
	l := &ledger{mesh: prog.Mesh}
	for r := range cost.NumResources {
		l.faster[r] = cost.NewProgram(c.Faster(r, 1+nudge), prog.Plan, prog.Mesh)
	}
	return l
}

// account is a [sim.Account].
func (l *ledger) account(instrs []codegen.Instr, at ir.Coord, time cost.Picoseconds, into []float64) {
	term := termOf(instrs[0].Node)
	into[term] += float64(time)
	if term == termRecompute || term == termHost {
		into[bindsMemory] += float64(time)
		return
	}
	var shares [cost.NumResources]float64
	sum := 0.0
	for r, p := range l.faster {
		less, _ := p.Bucket(instrs, l.mesh, at)
		shares[r] = max(0, float64(time-less))
		sum += shares[r]
	}
	if sum == 0 {
		into[bindsResource+int(cost.Arithmetic)] += float64(time) // no time, or too little for a difference in picoseconds
		return
	}
	for r, share := range shares {
		into[bindsResource+r] += share / sum * float64(time)
	}
}

// termOf says which term an instruction belongs to.
func termOf(n *ir.Node) int {
	attr, collective := n.Attr.(ir.CommAttr)
	switch {
	case n.Op == ir.OpSend || n.Op == ir.OpRecv:
		return termTransfers
	case codegen.HostCopy(n.Op):
		return termHost
	case codegen.Collective(n.Op) && collective:
		switch {
		case attr.Axis == partition.AxisTP || attr.Axis == partition.AxisTPR:
			return termTensor
		case attr.Axis == partition.AxisCP:
			return termContext
		case n.Op == ir.OpAllGather:
			return termParameters
		}
		return termGradients
	case n.Phase == ir.Update:
		return termOptimizer
	case recomputed(n):
		return termRecompute
	case n.Block() != "":
		return termBlocks
	}
	return termHead
}

// recomputed reports whether a node is part of recomputation. Its name says so: see partition's recompute.go.
func recomputed(n *ir.Node) bool { return slices.Contains(strings.Split(n.Name, "@"), "re") }

// divide fills in Terms and Binds from the accounts of the busiest rank, which are in picoseconds.
func (p *Prediction) divide(all []float64) {
	seconds := func(ps float64) float64 { return ps / 1e12 }
	for i, name := range termNames() {
		s := p.Bubble
		if i < terms {
			s = seconds(all[i])
		}
		p.Terms = append(p.Terms, Share{name, s})
	}
	for r := range cost.NumResources {
		p.Binds = append(p.Binds, Share{r.String(), seconds(all[bindsResource+int(r)])})
	}
	p.Binds = append(p.Binds, Share{memoryCapacity, seconds(all[bindsMemory])}, Share{"bubble", p.Bubble})
}

// imbalance is how much longer the busiest rank computes in its passes than the mean rank does, in seconds, without
// recomputation. A cut into perfectly equal stages, if there were one, would save that much.
func imbalance(busiest []float64, ranks [][]float64) float64 {
	passes := func(a []float64) float64 { return a[termBlocks] + a[termHead] }
	mean := 0.0
	for _, a := range ranks {
		mean += passes(a) / float64(len(ranks))
	}
	if more := passes(busiest) - mean; more > 1e-9*mean {
		return more / 1e12
	}
	return 0
}

// bindsText prints what binds in a fixed order, so that two plans can be compared side by side.
func (p *Prediction) bindsText(out io.Writer) {
	var rows [][]string
	for _, s := range p.Binds {
		if s.Seconds > 0 {
			rows = append(rows, []string{s.Name, Seconds(s.Seconds), fmt.Sprintf("%.1f%%", 100*s.Seconds/p.StepSeconds), bindsNote(s.Name)})
		}
	}
	table(out, fmt.Sprintf("what binds rank %d", p.Busiest), rows, 1, 2)
}

// bindsNote says what a share means.
func bindsNote(name string) string {
	switch name {
	case cost.Arithmetic.String():
		return "kernels that wait for arithmetic"
	case cost.HBM.String():
		return "kernels that wait for device memory"
	case cost.Launch.String():
		return "starting kernels and collectives"
	case memoryCapacity:
		return "recomputed kernels and copies from and to the host, which spare memory"
	case "bubble":
		return "waiting for other ranks"
	}
	return "communication that nothing runs beside"
}
