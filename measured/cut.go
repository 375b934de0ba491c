package measured

import (
	"strings"

	"github.com/autopar/autopar/partition"
)

// cut returns how many blocks each stage has. Software cuts what it calls layers
// evenly, the larger parts first, and differs in what it calls so: Megatron's and
// most others' are the blocks, or, where those do not divide and two more would, the
// blocks, the embedding and the head; AA-Scaling, whose layouts also the tables of
// outcomes have, counts embedding, last norm and head.
func (r *Row) cut(stages int) []int {
	before, after := 0, 0
	switch {
	case r.Framework == "" && r.Kernels != "", strings.Contains(r.Framework, "AA-Scaling"):
		before, after = 1, 2
	case r.Layers%stages != 0 && (r.Layers+2)%stages == 0:
		before, after = 1, 1
	}
	if r.Layers < 2*stages {
		before, after = 0, 0
	}
	layers := before + r.Layers + after
	sizes := make([]int, stages)
	for i := range sizes {
		sizes[i] = layers / stages
		if i < layers%stages {
			sizes[i]++
		}
	}
	sizes[0] -= before
	sizes[stages-1] -= after
	return sizes
}

// pins places what the row's software does not leave open: with tensor parallelism
// the table of embeddings is split over the vocabulary (Shoeybi et al. 2019, section
// 3), which saves memory and no time.
func (r *Row) pins() []partition.Placement {
	if r.TP == 1 {
		return nil
	}
	return []partition.Placement{{Match: `wte\.weight`, Spec: "[tp,_]"}}
}
