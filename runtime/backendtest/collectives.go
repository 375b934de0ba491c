package backendtest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// testCollectives moves values between all pairs of placements along one axis of a mesh, while
// another axis cuts them too, and checks every element on every rank.
func testCollectives(t *testing.T, open Open) {
	places := []ir.Placement{{}, ir.ShardOn(0), ir.ShardOn(1), ir.PartialOf(ir.Sum), ir.PartialOf(ir.Max)}
	for size := 2; size <= 4; size++ {
		mesh := ir.Mesh{Axes: []ir.Axis{{Name: "other", Size: 2}, {Name: "x", Size: size}}}
		ds, _ := devices(t, open, mesh.Devices(), time.Minute)
		for _, shape := range [][]int{{5, 7, 3}, {65, 9, 13}, {4, 4, 2}} {
			for _, from := range places {
				for _, to := range places {
					for i, inPlace := range []bool{false, true, false} {
						dtype := []ir.DType{ir.F32, ir.BF16, ir.F16}[i]
						v := &moved{mesh: mesh, dtype: dtype, shape: shape, from: ir.ShardSpec{ir.ShardOn(2), from}, to: ir.ShardSpec{ir.ShardOn(2), to}, inPlace: inPlace}
						steps, err := partition.Path(mesh, v.from, v.to)
						if err != nil || len(steps) != 1 {
							continue // there is no such collective, or it does nothing
						}
						v.step = steps[0]
						name := fmt.Sprintf("%s/%s%v/%s to %s over %d/in place=%t", v.step.Op, dtype, shape, from, to, size, inPlace)
						if inPlace && v.step.Op != ir.OpAllReduce && v.step.Op != ir.OpToPartial {
							continue
						}
						t.Run(name, func(t *testing.T) { v.run(t, ds) })
					}
				}
			}
		}
		for _, shape := range [][]int{{}, {100_003}} {
			dtype := []ir.DType{ir.F32, ir.BF16, ir.F16}[size-2]
			t.Run(fmt.Sprintf("all_reduce/%s%v over %d", dtype, shape, size), func(t *testing.T) {
				v := &moved{mesh: mesh, shape: shape, from: ir.ShardSpec{axisX: ir.PartialOf(ir.Sum)}, dtype: dtype}
				steps, err := partition.Path(mesh, v.from, v.to)
				require.NoError(t, err)
				v.step = steps[0]
				v.run(t, ds)
			})
		}
	}
}

// moved is a value that one communication op moves from one spec to another.
type moved struct {
	mesh     ir.Mesh
	dtype    ir.DType
	shape    []int
	from, to ir.ShardSpec
	step     partition.Step
	inPlace  bool
}

const axisX = 1 // the axis along which the value moves

func (v *moved) run(t *testing.T, ds []runtime.Device) {
	typ := ir.Type{DType: v.dtype, Shape: v.shape}
	arg := &ir.Value{Type: typ, Spec: v.from}
	node := &ir.Node{Op: v.step.Op, Attr: v.step.Attr, Name: "x@" + v.step.Op.String(), Args: []*ir.Value{arg}}
	node.Results = []*ir.Value{{Type: typ, Spec: v.to, Def: node}}

	size := v.mesh.Axes[axisX].Size
	rng := rand.New(rand.NewPCG(uint64(size), uint64(typ.Elems())))
	terms := make([][]float32, size) // the operand of each position, at the shape of the whole
	for i := range terms {
		terms[i] = random(rng, typ.Elems())
		for j, x := range terms[i] {
			terms[i][j] = float32(v.dtype.Round(float64(x)))
		}
		if i > 0 && v.from[axisX].Kind != ir.Partial {
			terms[i] = terms[0]
		}
	}
	want := v.reduced(terms)

	var first [][]float32
	for range 2 { // twice, to compare the bits
		got, tensors := v.move(t, ds, node, terms)
		v.check(t, got, tensors, want)
		if first == nil {
			first = got
		}
		require.True(t, slices.EqualFunc(first, got, slices.Equal), "results differ from run to run")
	}
}

// reduced returns the expected value: the terms are added in order in float32, and the sum is
// rounded to the value's type.
func (v *moved) reduced(terms [][]float32) []float32 {
	want := append([]float32(nil), terms[0]...)
	if v.from[axisX].Kind != ir.Partial {
		return want
	}
	for _, term := range terms[1:] {
		for i, x := range term {
			if v.from[axisX].Reduce == ir.Max {
				want[i] = max(want[i], x)
			} else {
				want[i] += x
			}
		}
	}
	for i, x := range want {
		want[i] = float32(v.dtype.Round(float64(x)))
	}
	return want
}

// move runs the op on all ranks and returns each rank's result.
func (v *moved) move(t *testing.T, ds []runtime.Device, node *ir.Node, terms [][]float32) ([][]float32, []runtime.Tensor) {
	var a arena
	whole := ir.Whole(v.shape)
	in, out := a.tensor(v.dtype, whole), a.tensor(v.dtype, whole)
	if v.inPlace {
		out = in
	}
	members := make([]runtime.Member, len(ds))
	for r := range ds {
		c := v.mesh.Coord(r)
		m := runtime.Member{Rank: r, In: in, Out: out}
		m.In.Slab, m.Out.Slab = v.mesh.Local(v.shape, v.from, c), v.mesh.Local(v.shape, v.to, c)
		members[r] = m
	}
	collective := func(r int) *runtime.Collective {
		c := v.mesh.Coord(r)
		op := &runtime.Collective{Node: node, Attr: v.step.Attr, Group: c[0], Position: c[axisX]}
		for _, other := range v.mesh.Group(c, axisX) {
			op.Members = append(op.Members, members[other])
		}
		return op
	}
	require.NoError(t, Load(ds, a.end, func(r int) (collectives []*runtime.Collective, _ []*runtime.Transfer) {
		if codegen.Collective(node.Op) {
			collectives = append(collectives, collective(r))
		}
		return collectives, nil
	}))
	for r, d := range ds {
		upload(t, d, out, make([]float32, whole.Elems()))
		upload(t, d, members[r].In, part(terms[v.mesh.Coord(r)[axisX]], members[r].In.Slab))
	}
	errs := together(ds, func(r int, d runtime.Device) error {
		if codegen.Collective(node.Op) {
			return d.Collective(collective(r))
		}
		return d.Launch(&runtime.Kernel{
			Node: node, Args: []runtime.Tensor{members[r].In}, Results: []runtime.Tensor{members[r].Out},
			Accum: []bool{false}, Position: v.mesh.Coord(r)[axisX],
		})
	})
	require.NoError(t, errors.Join(errs...))
	got := make([][]float32, len(ds))
	tensors := make([]runtime.Tensor, len(ds))
	for r, d := range ds {
		tensors[r] = members[r].Out
		got[r] = download(t, d, tensors[r])
	}
	return got, tensors
}

// check compares the results with the whole value, and the bits of elements that several ranks
// have.
func (v *moved) check(t *testing.T, got [][]float32, tensors []runtime.Tensor, want []float32) {
	sums := make([]float32, len(want))
	seen := make([]bool, len(want))
	for r := range got {
		eachRow(tensors[r].Slab, func(local, global, n int) {
			for _, x := range got[r][local : local+n] {
				switch {
				case v.to[axisX].Kind == ir.Partial:
					sums[global] += x
				case !seen[global]:
					sums[global], seen[global] = x, true
				case math.Float32bits(x) != math.Float32bits(sums[global]):
					t.Fatalf("rank %d, element %d: got %v, another rank has %v", r, global, x, sums[global])
				}
				global++
			}
		})
	}
	for i := range want {
		if diff := math.Abs(float64(sums[i] - want[i])); !(diff <= 2e-6) {
			t.Fatalf("element %d: got %v, want %v", i, sums[i], want[i])
		}
	}
}
