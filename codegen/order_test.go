package codegen_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// outline is a plan of which only the pipeline is filled in.
func outline(n, k int, schedule partition.Schedule) *partition.Plan {
	p := &partition.Plan{Schedule: schedule, Stages: make([]partition.Stage, n*k)}
	if k > 1 {
		p.Interleave = k
	}
	return p
}

// leading counts the forward passes before the first backward pass: those of the
// warm-up, and one more if there is one.
func leading(tasks []codegen.Task) int {
	n := 0
	for n < len(tasks) && tasks[n].Phase == ir.Forward {
		n++
	}
	return n
}

// TestInterleavedWarmUp holds the warm-up of interleaved 1F1B against Narayanan et
// al. SC'21: min(n(k-1) + 2(n-1-i), m k) (row 30).
func TestInterleavedWarmUp(t *testing.T) {
	for n := 2; n <= 6; n++ {
		for k := 2; k <= 5; k++ {
			for rounds := 1; rounds <= 5; rounds++ {
				m := rounds * n
				p := outline(n, k, partition.Interleaved)
				for i := range n {
					tasks := codegen.Order(p, i, m, true)
					want := min(n*(k-1)+2*(n-1-i), m*k)
					require.Equal(t, min(want+1, m*k), leading(tasks), "%d ranks, %d chunks, %d micro-batches, rank %d", n, k, m, i)
					// Peak live micro-batches of all chunks: the warm-up and the one that
					// the first backward pass follows, if rounds are whole.
					live, most := 0, 0
					for _, x := range tasks {
						switch x.Phase {
						case ir.Forward:
							live++
						case ir.Backward:
							live--
						}
						most = max(most, live)
					}
					require.Equal(t, min(want+1, m*k), most)
				}
			}
		}
	}
}

// TestOrders: under every schedule each rank runs every micro-batch through every
// chunk once in each direction, the gradients of weights after those of
// activations, and never has more in flight than there are slots, nor than with
// more micro-batches.
func TestOrders(t *testing.T) {
	type pass struct {
		phase     ir.Phase
		chunk, mb int
	}
	for _, schedule := range []partition.Schedule{partition.GPipe, partition.OneFOneB, partition.Interleaved, partition.ZeroBubble} {
		for n := 1; n <= 5; n++ {
			for k := 1; k <= 4; k++ {
				if (schedule == partition.Interleaved) != (k > 1) || k > 1 && n == 1 {
					continue
				}
				p := outline(n, k, schedule)
				last := codegen.Releases(p, true)
				for i := range n {
					before := make([]int, k)
					for m := 1; m <= 13; m++ {
						slots := codegen.InFlight(p, i, m, true)
						seen := map[pass]bool{}
						live := make([]int, k)
						most := make([]int, k)
						for _, x := range codegen.Order(p, i, m, true) {
							if x.Phase == ir.Update {
								continue
							}
							require.False(t, seen[pass{x.Phase, x.Chunk, x.MicroBatch}])
							if x.Phase != ir.Forward {
								require.True(t, seen[pass{x.Phase - 1, x.Chunk, x.MicroBatch}])
							}
							seen[pass{x.Phase, x.Chunk, x.MicroBatch}] = true
							if x.Phase == ir.Forward {
								live[x.Chunk]++
								most[x.Chunk] = max(most[x.Chunk], live[x.Chunk])
							}
							if x.Phase == last {
								live[x.Chunk]--
							}
						}
						require.Len(t, seen, m*k*(int(last)+1))
						require.Equal(t, most, slots, "%s, %d ranks, %d chunks, %d micro-batches, rank %d", schedule, n, k, m, i)
						for c := range k {
							require.GreaterOrEqual(t, slots[c], before[c])
						}
						before = slots
					}
				}
			}
		}
	}
}

// TestZeroBubbleOrder: the warm-up is that of 1F1B, the gradients of weights lag
// behind by the position, and no more is in flight than on the first rank under
// 1F1B (Qi et al. 2024, ZB-H1).
func TestZeroBubbleOrder(t *testing.T) {
	const n, m = 4, 9
	p := outline(n, 1, partition.ZeroBubble)
	for i := range n {
		tasks := codegen.Order(p, i, m, true)
		require.Equal(t, n-i, leading(tasks))
		require.Equal(t, []int{n}, codegen.InFlight(p, i, m, true))
		backward := 0
		for _, x := range tasks {
			switch x.Phase {
			case ir.Backward:
				backward++
			case ir.WeightGrad:
				if backward < m {
					require.Equal(t, backward-1-i, x.MicroBatch, "position %d", i)
				}
			}
		}
	}
}
