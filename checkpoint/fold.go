package checkpoint

import (
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
)

// Folded returns a Reader of a model's weights with its adapters merged into them: W + alpha/rank B
// A, summed in double precision and rounded once [Hu et al. 2022, section 4.1]. r has weights and
// adapters. The merged model computes the same function.
func Folded(r Reader, cfg gpt.Config) Reader {
	if cfg.LoRARank == 0 {
		return r
	}
	return folded{r, cfg}
}

type folded struct {
	of  Reader
	cfg gpt.Config
}

// Read implements [Reader].
func (f folded) Read(name string, dtype ir.DType, slab ir.Slab, dst []byte) error {
	adapter, ok := f.cfg.AdapterOf(name)
	if !ok {
		return f.of.Read(name, dtype, slab, dst)
	}
	rank, out := f.cfg.LoRARank, len(slab.Global)-adapter.In // dimensions of the output
	w, err := readFloats(f.of, name, slab)
	if err != nil {
		return err
	}
	all := ir.Whole([]int{rank})
	a, err := readFloats(f.of, adapter.A, times(all, dims(slab, out, len(slab.Global))))
	if err != nil {
		return err
	}
	b, err := readFloats(f.of, adapter.B, times(dims(slab, 0, out), all))
	if err != nil {
		return err
	}
	cols := int(ir.Elems(slab.Local[out:]))
	sum := make([]float64, cols)
	for row := range int(ir.Elems(slab.Local[:out])) {
		clear(sum)
		for r := range rank {
			for c, x := range a[r*cols:][:cols] {
				sum[c] += float64(b[row*rank+r]) * float64(x)
			}
		}
		for c, x := range sum {
			at := row*cols + c
			dtype.Write(dst[dtype.Size()*int64(at):], float32(float64(w[at])+adapter.Factor*x))
		}
	}
	return nil
}

// dims returns dimensions [from, to) of a part. times returns the part with the dimensions of a
// followed by those of b.
func dims(s ir.Slab, from, to int) ir.Slab {
	return ir.Slab{Global: s.Global[from:to], Offset: s.Offset[from:to], Local: s.Local[from:to]}
}

func times(a, b ir.Slab) ir.Slab {
	return ir.Slab{
		Global: slices.Concat(a.Global, b.Global), Offset: slices.Concat(a.Offset, b.Offset), Local: slices.Concat(a.Local, b.Local),
	}
}
