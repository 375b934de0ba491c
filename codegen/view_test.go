package codegen_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/trace"
)

// TestViews: a shard that is gathered is a view of the whole, if nothing else uses the whole from where the
// shard is made to where it is gathered, and nothing uses the shard after that.
func TestViews(t *testing.T) {
	const whole, part, other = 0, 1, 2
	v := &ir.Value{Type: ir.Type{DType: ir.F32, Shape: []int{4, 16}}}
	half := &ir.Value{Type: ir.Type{DType: ir.BF16, Shape: []int{4, 16}}}
	of := func(op ir.Op, from, to int, x, y *ir.Value) codegen.Instr {
		return codegen.Instr{Node: &ir.Node{Op: op, Args: []*ir.Value{x}, Results: []*ir.Value{y}}, Args: []int{from}, Results: []int{to}}
	}
	instr := func(op ir.Op, from, to int) codegen.Instr { return of(op, from, to, v, v) }
	cut, update, back := instr(ir.OpSlice, whole, part), instr(ir.OpAdamW, part, part), instr(ir.OpAllGather, part, whole)
	made := instr(ir.OpCast, other, part)
	for name, c := range map[string]struct {
		instrs    []codegen.Instr
		want, cut bool
	}{
		"ZeRO 1":                      {[]codegen.Instr{cut, update, back}, true, true},
		"master weights":              {[]codegen.Instr{made, back}, true, false},
		"others at work":              {[]codegen.Instr{cut, update, instr(ir.OpAdamW, other, other), back, instr(ir.OpSumSquares, whole, other)}, true, true},
		"it does not come back":       {[]codegen.Instr{cut, update}, false, false},
		"the whole is read before":    {[]codegen.Instr{cut, update, instr(ir.OpSumSquares, whole, other), back}, false, false},
		"the whole is written before": {[]codegen.Instr{cut, instr(ir.OpAdamW, other, whole), update, back}, false, false},
		"it is made of the whole":     {[]codegen.Instr{instr(ir.OpCast, whole, part), back}, false, false},
		"another comes to the whole":  {[]codegen.Instr{cut, update, instr(ir.OpAllGather, other, whole)}, false, false},
		"the part is read after":      {[]codegen.Instr{cut, update, back, instr(ir.OpSumSquares, part, other)}, false, false},
		"the part is made after":      {[]codegen.Instr{cut, update, back, instr(ir.OpSlice, other, part)}, false, false},
		"it was wider once":           {[]codegen.Instr{of(ir.OpAdamW, other, part, v, half), of(ir.OpCast, part, part, half, v), back}, false, false},
	} {
		st := &codegen.Stage{Buffers: []codegen.Buffer{{Region: codegen.Persist, Value: v}, {Region: codegen.Temp, Value: v}, {Region: codegen.Persist, Value: v}}}
		st.Bodies[ir.Update].Instrs = slices.Clone(c.instrs)
		st.Views()
		require.Equal(t, c.want && st.Buffers[part].Of == whole, st.Buffers[part].View, name)
		require.Equal(t, c.want, st.Buffers[part].View, name)
		require.Equal(t, c.cut, st.Bodies[ir.Update].Instrs[0].Idle(), name)
	}
}

// TestPlace: a contiguous part has a place in the whole.
func TestPlace(t *testing.T) {
	whole := ir.Slab{Global: []int{16, 32}, Offset: []int{4, 0}, Local: []int{8, 32}}
	for name, c := range map[string]struct {
		offset, local []int
		want          int64
		ok            bool
	}{
		"rows":            {[]int{6, 0}, []int{3, 32}, 64, true},
		"part of a row":   {[]int{5, 16}, []int{1, 16}, 48, true},
		"columns":         {[]int{4, 16}, []int{8, 16}, 0, false},
		"rows outside":    {[]int{11, 0}, []int{2, 32}, 0, false},
		"rows before":     {[]int{3, 0}, []int{2, 32}, 0, false},
		"nothing, beyond": {[]int{12, 0}, []int{0, 32}, 0, true},
	} {
		at, ok := codegen.Place(whole, ir.Slab{Global: whole.Global, Offset: c.offset, Local: c.local})
		require.Equal(t, c.ok, ok, name)
		require.Equal(t, c.want, at, name)
	}
}

// TestFits: a view must be contiguous and start at an aligned address on all ranks, including those with
// smaller parts.
func TestFits(t *testing.T) {
	mesh := ir.Mesh{Axes: []ir.Axis{{Name: "dp", Size: 3}, {Name: "tp", Size: 2}}}
	spec := func(dp, tp int) (s ir.ShardSpec) {
		for axis, dim := range []int{dp, tp} {
			if dim >= 0 {
				s[axis] = ir.ShardOn(dim)
			}
		}
		return s
	}
	for name, c := range map[string]struct {
		shape  []int
		dp, tp int
		want   bool
	}{
		"rows of lines":                {[]int{7, 16}, 0, -1, true},
		"rows of half lines":           {[]int{7, 8}, 0, -1, false},
		"an even number of half lines": {[]int{12, 8}, 0, -1, true},
		"columns":                      {[]int{7, 48}, 1, -1, false},
		"rows of parts":                {[]int{6, 32}, 0, 1, true},
		"rows of uneven parts":         {[]int{6, 33}, 0, 1, false},
		"fewer rows than ranks":        {[]int{2, 16}, 0, -1, true},
		"parts of no part":             {[]int{7, 16}, 0, 0, false},
	} {
		whole := &ir.Value{Type: ir.Type{DType: ir.F32, Shape: c.shape}, Spec: spec(-1, c.tp)}
		part := &ir.Value{Type: whole.Type, Spec: spec(c.dp, c.tp)}
		require.Equal(t, c.want, codegen.Fits(mesh, whole, part), name)
	}
}

// TestFitsEverywhere: the positions that Fits tries decide for all positions.
func TestFitsEverywhere(t *testing.T) {
	const seed = 4
	r := rand.New(rand.NewPCG(seed, 0))
	fit := 0
	for range 5000 {
		mesh := ir.Mesh{Axes: []ir.Axis{{Name: "dp", Size: 1 + r.IntN(9)}, {Name: "tp", Size: 1 + r.IntN(9)}}}
		whole := &ir.Value{Type: ir.Type{DType: ir.F32, Shape: []int{1 + r.IntN(40), 8 * (1 + r.IntN(8))}}}
		part := &ir.Value{Type: whole.Type}
		for axis := range mesh.Axes {
			if r.IntN(3) > 0 {
				part.Spec[axis] = ir.ShardOn(r.IntN(2))
			}
			if r.IntN(2) > 0 {
				whole.Spec[axis] = part.Spec[axis]
			}
		}
		all := true
		for dp := range mesh.Axes[0].Size {
			for tp := range mesh.Axes[1].Size {
				at := ir.Coord{dp, tp}
				elem, ok := codegen.Place(mesh.Local(whole.Type.Shape, whole.Spec, at), mesh.Local(part.Type.Shape, part.Spec, at))
				all = all && ok && elem%16 == 0
			}
		}
		require.Equal(t, all, codegen.Fits(mesh, whole, part), "seed %d: %v of %v on %v", seed, part.Spec, whole, mesh)
		if all {
			fit++
		}
	}
	require.Greater(t, fit, 500)
}

// viewed is a program whose ranks update shards of wide parameters in place.
func viewed(t *testing.T, half bool, tokens int, p *partition.Plan) (*codegen.Program, *ir.Graph) {
	m := model(2)
	m.NEmbd = 48
	if half {
		m.Float = trace.BF16
	}
	g, err := gpt.TrainStep(m, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, batch, tokens)
	require.NoError(t, err)
	prog := generate(t, g, p)
	require.NoError(t, codegen.Check(prog))
	return prog, g
}

// TestViewsInPrograms: under ZeRO 1 and 2 shards of parameters take no memory of their own, if they start at
// aligned addresses.
func TestViewsInPrograms(t *testing.T) {
	for _, half := range []bool{false, true} {
		for _, zero := range []int{1, 2} {
			p := plan(3, 1, 1, 3, 2, partition.GPipe, false)
			p.ZeRO = zero
			prog, g := viewed(t, half, 2, p) // so short that the update needs the most memory
			st := prog.Stages[0]
			draft, err := codegen.Draft(g, p, batch, p.Lone(batch))
			require.NoError(t, err)
			longer, ok := draft.Longer(0, codegen.SumsOn(prog.Mesh), nil, nil)
			require.True(t, ok)
			r := longer.Regions(prog.Mesh)
			require.Equal(t, st.Arena(), r.Arena())
			views, idle := 0, 0
			for id := range st.Buffers {
				b := &st.Buffers[id]
				if !b.View {
					continue
				}
				views++
				require.Equal(t, ir.OpParam, st.Buffers[b.Of].Value.Def.Op)
				last := int64(-1)
				for r := range prog.Schedules {
					s := &prog.Schedules[r]
					at := prog.Offset(s, codegen.Task{Phase: ir.Update}, id)
					require.Greater(t, at, last)
					last = at
				}
			}
			for _, in := range st.Bodies[ir.Update].Instrs {
				if in.Idle() {
					idle++
				}
			}
			require.GreaterOrEqual(t, views, 9)
			require.Equal(t, !half, idle == views, "a master weight is not cut out")
		}
	}
}

// TestViewMutants: a program is refused if what it says about a view is wrong.
func TestViewMutants(t *testing.T) {
	p := plan(2, 1, 1, 2, 2, partition.GPipe, false)
	p.ZeRO = 1
	find := func(st *codegen.Stage, name string) (int, *codegen.Instr) {
		all := st.Bodies[ir.Update].Instrs
		at := slices.IndexFunc(all, func(in codegen.Instr) bool { return in.Node.Name == name })
		require.GreaterOrEqual(t, at, 0, name)
		return at, &all[at]
	}
	const cut, update, back = "h.0.mlp.c_fc.weight@slice_dp", "h.0.mlp.c_fc.weight/adamw", "h.0.mlp.c_fc.weight/adamw@all_gather_dp"
	const overwritten = "has overwritten some"
	for name, c := range map[string]struct {
		breakIt func(prog *codegen.Program, st *codegen.Stage, view *codegen.Buffer)
		want    string
	}{
		"of another parameter": {func(_ *codegen.Program, st *codegen.Stage, view *codegen.Buffer) { view.Of = st.Params["wte.weight"] }, "is a view of b"},
		"of a view": {func(_ *codegen.Program, st *codegen.Stage, view *codegen.Buffer) {
			view.Of = slices.IndexFunc(st.Buffers, func(b codegen.Buffer) bool { return b.View })
		}, "no place of its own"},
		"of another half": {func(prog *codegen.Program, st *codegen.Stage, view *codegen.Buffer) {
			v := *view.Value
			v.Spec[prog.Mesh.Axis("dp")] = ir.ShardOn(1)
			view.Value = &v
		}, "not in one piece"},
		"of the whole": {func(prog *codegen.Program, st *codegen.Stage, view *codegen.Buffer) {
			v := *view.Value
			v.Spec[prog.Mesh.Axis("dp")] = ir.Placement{}
			view.Value = &v
		}, "is another part than b"},
		"with a place of its own": {func(_ *codegen.Program, st *codegen.Stage, view *codegen.Buffer) { view.View = false }, "overlap while both are live"},
		"and not in place": {func(_ *codegen.Program, st *codegen.Stage, _ *codegen.Buffer) {
			_, in := find(st, back)
			in.InPlace = false
		}, "shares memory with operand 0"},
		"and what does something in place": {func(_ *codegen.Program, st *codegen.Stage, _ *codegen.Buffer) {
			_, in := find(st, update)
			in.InPlace = true
		}, "which moves something even in place"},
		"and it is cut out after it was updated": {func(_ *codegen.Program, st *codegen.Stage, _ *codegen.Buffer) {
			from, in := find(st, cut)
			to, _ := find(st, update)
			all := st.Bodies[ir.Update].Instrs
			all[from], all[to] = all[to], *in
		}, "before anything is written there"},
		"and the whole is read when some of it is new": {func(_ *codegen.Program, st *codegen.Stage, view *codegen.Buffer) {
			_, in := find(st, "h.1.mlp.c_fc.weight/adamw")
			in.Args = slices.Clone(in.Args)
			in.Args[0] = view.Of
		}, overwritten},
	} {
		prog, g := viewed(t, false, 33, p)
		st := prog.Stages[0]
		_, in := find(st, back)
		c.breakIt(prog, st, &st.Buffers[in.Args[0]])
		err := codegen.Check(prog)
		require.Error(t, err, name)
		require.ErrorContains(t, err, c.want, name)
		if c.want == overwritten {
			require.ErrorContains(t, codegen.CheckEquivalent(prog, g), "before anything is written", name)
		}
	}
}

// TestViewsOnStreams: nothing writes through a view what the communication stream may still be reading.
func TestViewsOnStreams(t *testing.T) {
	v := &ir.Value{Type: ir.Type{DType: ir.F32, Shape: []int{4, 16}}, Def: &ir.Node{Name: "v"}}
	st := &codegen.Stage{
		Buffers: []codegen.Buffer{{Value: v}, {Region: codegen.Temp, Body: ir.Update, To: 1, Value: v}, {Value: v}},
		Chunks:  make([]codegen.Chunk, 1),
	}
	st.Bodies[ir.Update].Instrs = []codegen.Instr{
		{Node: &ir.Node{Op: ir.OpAllReduce, Phase: ir.Update, Args: []*ir.Value{v}, Results: []*ir.Value{v}}, Args: []int{0}, Results: []int{2}, Async: true},
		{Node: &ir.Node{Op: ir.OpCast, Phase: ir.Update, Args: []*ir.Value{v}, Results: []*ir.Value{v}}, Args: []int{1}, Results: []int{1}},
	}
	require.NoError(t, st.CheckStreams())
	st.Buffers[1].View = true // of the first buffer
	require.ErrorContains(t, st.CheckStreams(), "may still be using")
}
