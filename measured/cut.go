package measured

import (
	"github.com/autopar/autopar/partition"
)

// cut returns how many blocks each stage has. All software cuts its layers evenly, larger stages first, but counts different
// things as layers. For Megatron and most others these are the blocks; if the stages divide not the number of blocks but
// that number plus two, also the embedding and the head. AA-Scaling counts blocks, embedding, last norm and head. The
// tables of outcomes (rows without a framework, but with kernels) have AA-Scaling's layouts, too.
func (r *Row) cut(stages int) []int {
	before, after := 0, 0
	switch {
	case r.Framework == "" && r.Kernels != "", r.frameworkHas("AA-Scaling"):
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

// pins returns the placements that the row's software prescribes: with tensor parallelism the embedding table is split over
// the vocabulary (Shoeybi et al. 2019, section 3), which saves memory but no time.
func (r *Row) pins() []partition.Placement {
	if r.TP == 1 {
		return nil
	}
	return []partition.Placement{{Match: `wte\.weight`, Spec: "[tp,_]"}}
}
