package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// The benchmarks of this file are the parts of a search that do not depend on how
// it searches: tracing, cutting the graph down to a few blocks, finding the layout
// and compiling, for GPT-3 175B with a batch of 1,536 sequences.

const benchBatch = 1536

func benchGraph(b *testing.B) *ir.Graph {
	c, err := gpt.Preset("gpt3-175b")
	require.NoError(b, err)
	c.Float = ir.BF16
	return step(b, c, benchBatch)
}

// benchLayouts finds layouts for the graph with one block.
func benchLayouts(b *testing.B, g *ir.Graph) *layouts {
	one, ok := Shrink(g, 1)
	require.True(b, ok)
	return &layouts{graph: one, batch: benchBatch, ranks: 1024, cluster: cluster(b, "h100"), known: map[int][][]partition.Placement{}}
}

// benchPlan has tp 8, dp 16 and ZeRO 1, and cuts the blocks evenly.
func benchPlan(b *testing.B, g *ir.Graph, blocks, stages int) *partition.Plan {
	p := &partition.Plan{
		PlanNGPUs: 128 * stages, RuntimeNGPUs: 128 * stages, DP: 16, TP: 8, MicroBatch: 1, Schedule: partition.OneFOneB,
		ZeRO: 1, SequenceParallel: true, Placements: benchLayouts(b, g).find(8),
	}
	for s := range stages {
		p.Stages = append(p.Stages, partition.Stage{First: s * blocks / stages, Last: (s + 1) * blocks / stages})
	}
	return p
}

// BenchmarkTrace traces the training step of all 96 blocks.
func BenchmarkTrace(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		benchGraph(b)
	}
}

// BenchmarkShrink cuts 96 blocks down to one and to three.
func BenchmarkShrink(b *testing.B) {
	b.ReportAllocs()
	g := benchGraph(b)
	for b.Loop() {
		newShrunken(g).keep(3)
	}
}

// BenchmarkLayouts finds the layout for tensor parallelism over eight ranks.
func BenchmarkLayouts(b *testing.B) {
	b.ReportAllocs()
	l := benchLayouts(b, benchGraph(b))
	for b.Loop() {
		l.known = map[int][][]partition.Placement{}
		l.find(8)
	}
}

func benchCompile(b *testing.B, blocks, stages int, micro int) {
	b.ReportAllocs()
	whole := benchGraph(b)
	g := whole
	if blocks < 96 {
		g, _ = Shrink(whole, blocks)
	}
	p := benchPlan(b, whole, blocks, stages)
	p.MicroBatch = micro
	for b.Loop() {
		_, err := codegen.Compile(g, p, benchBatch, nil)
		require.NoError(b, err)
	}
}

// BenchmarkCompileBlock compiles one block on one stage, all of the batch at once,
// as skeletons are.
func BenchmarkCompileBlock(b *testing.B) { benchCompile(b, 1, 1, benchBatch) }

// BenchmarkCompileStages compiles three blocks on three stages.
func BenchmarkCompileStages(b *testing.B) { benchCompile(b, 3, 3, benchBatch) }

// BenchmarkCompileWhole compiles a whole plan of 1,024 ranks on 8 stages.
func BenchmarkCompileWhole(b *testing.B) { benchCompile(b, 96, 8, 1) }
