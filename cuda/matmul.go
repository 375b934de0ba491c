package cuda

import (
	"slices"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// isGEMM reports whether [driver.BLAS] runs a kernel: it is a product that is neither summed in
// fixed point nor required to have the same bits under every plan.
func (d *Device) isGEMM(k *runtime.Kernel) bool {
	return isProduct(k) && k.Node.Attr.(ir.MatMulAttr).Frac == 0 && !d.backend.opts.Reproducible
}

// gemmOf returns a matmul in the terms of BLAS, which is column-major: it sees a row-major matrix
// as its transpose. So y = a·b is computed as yᵀ = bᵀ·aᵀ, with the operands swapped. empty says
// that a dimension is 0.
func gemmOf(k *runtime.Kernel) (g driver.GEMM, empty bool) {
	attr := k.Node.Attr.(ir.MatMulAttr)
	a, b := k.Args[0], k.Args[1]
	var m, n, inner int64
	switch attr.Form {
	case ir.MatMulNT: // a[m,k] b[n,k]
		m, inner = split(a, len(a.Slab.Local)-attr.K)
		n, _ = split(b, len(b.Slab.Local)-attr.K)
		g = driver.GEMM{TransA: true, LDA: inner, LDB: inner}
	case ir.MatMulNN: // a[m,k] b[k,n]
		m, inner = split(a, len(a.Slab.Local)-attr.K)
		_, n = split(b, attr.K)
		g = driver.GEMM{LDA: n, LDB: inner}
	case ir.MatMulTN: // a[k,m] b[k,n]
		inner, m = split(a, attr.K)
		_, n = split(b, attr.K)
		g = driver.GEMM{TransB: true, LDA: n, LDB: m}
	}
	g.M, g.N, g.K, g.LDC = n, m, inner, n
	g.TypeA, g.TypeB, g.TC = b.DType, a.DType, k.Results[0].DType
	g.Accumulate = k.Accum[0]
	return g, m == 0 || n == 0 || inner == 0
}

func isProduct(k *runtime.Kernel) bool { return k.Node.Op == ir.OpMatMul }

// productIn returns the index of the kernel in a group that BLAS runs, or -1.
func (d *Device) productIn(g kernel.Group) int { return slices.IndexFunc(g, d.isGEMM) }

// prepareEpilogue prepares a group that BLAS may run as one call: a product and the bias added to
// it, or the gradient of a bias and the product that reads the same operand. BLAS runs the kernels
// one by one if that is faster.
func (d *Device) prepareEpilogue(g kernel.Group) (launch, error) {
	var apart []launch
	for _, k := range g {
		run, err := d.prepareGroup(kernel.Group{k})
		if err != nil {
			return nil, err
		}
		apart = append(apart, run)
	}
	one := func(s driver.Stream) error {
		for _, run := range apart {
			if err := run(s); err != nil {
				return err
			}
		}
		return nil
	}
	product := g[d.productIn(g)]
	gemm, empty := gemmOf(product)
	if empty {
		return one, nil
	}
	out, vector := product.Results[0], g[0].Results[0]
	gemm.Epilogue = driver.SumB
	if g[0] == product {
		gemm.Epilogue, out, vector = driver.AddBias, g[1].Results[0], g[1].Args[1]
	}
	return func(s driver.Stream) error {
		return d.gpu.blas.With(gemm, d.at(product.Args[1]), d.at(product.Args[0]), d.at(out), d.at(vector), d.workspace, s,
			func() error { return one(s) })
	}, nil
}

// split returns the product of the first dimensions of a part, up to at, and that of the others.
func split(t runtime.Tensor, at int) (rows, cols int64) {
	return ir.Elems(t.Slab.Local[:at]), ir.Elems(t.Slab.Local[at:])
}

// prepareGEMM prepares a matmul by BLAS. If the inner dimension is empty the result is zero.
func (d *Device) prepareGEMM(k *runtime.Kernel) launch {
	g, empty := gemmOf(k)
	y := k.Results[0]
	return func(s driver.Stream) error {
		if !empty {
			return d.gpu.blas.MatMul(g, d.at(k.Args[1]), d.at(k.Args[0]), d.at(y), d.workspace, s)
		}
		if y.Bytes() == 0 || g.Accumulate {
			return nil
		}
		return d.drv.Set8(d.at(y), 0, y.Bytes(), s)
	}
}
