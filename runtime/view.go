package runtime

import (
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
)

// view is a buffer that holds a part of what lies in another: the rank's share of a parameter, which ZeRO 1 and 2 cut out,
// update and gather with the other ranks' shares into the parameter. Where the share is in one piece it is updated in its
// place, and its way out and back takes no time: 3 % of a step of nanoGPT's model for a CPU by dp 4.
type view struct {
	of    int       // the other buffer
	whole *ir.Value // that lies there
}

// viewsOf returns the views of a stage by buffer, none unless the devices are [Viewer]. Until the gather nothing may read or
// write the whole but the slice, and after it nothing the part.
func (l *loader) viewsOf(stage *codegen.Stage) map[int]view {
	if views, ok := l.views[stage]; ok {
		return views
	}
	views := map[int]view{}
	l.views[stage] = views
	instrs := stage.Bodies[ir.Update].Instrs
	for i := range instrs {
		if viewer, ok := l.exec.here[0].device.(Viewer); !ok || !viewer.Views() || instrs[i].Node.Op != ir.OpSlice {
			continue
		}
		of, part := instrs[i].Args[0], instrs[i].Results[0]
		if stage.Buffers[of].Region == codegen.Persist && stage.Buffers[part].Region == codegen.Temp && gathers(instrs[i+1:], part, of) {
			views[part] = view{of, instrs[i].Node.Args[0]}
		}
	}
	return views
}

// gathers reports whether instructions use a part until they gather it to the whole it is of, which they do not use before.
func gathers(instrs []codegen.Instr, part, whole int) bool {
	gathered := false
	for i := range instrs {
		in := &instrs[i]
		touches := func(id int) bool { return slices.Contains(in.Args, id) || slices.Contains(in.Results, id) }
		switch {
		case gathered && touches(part), !gathered && slices.Contains(in.Args, whole):
			return false
		case gathered || !touches(whole):
		case in.Node.Op != ir.OpAllGather || in.Args[0] != part:
			return false
		default:
			gathered = true
		}
	}
	return gathered
}

// place returns the offset of a part of a value in an arena where the whole of it lies at another; false unless the part is in
// one piece that starts where a tensor may.
func (v view) place(offset int64, whole, part ir.Slab) (int64, bool) {
	runs := 0
	EachRun(whole, part, func(from, _, _ int) {
		offset += int64(from) * v.whole.Type.DType.Size()
		runs++
	})
	return offset, runs == 1 && offset%tensorAlign == 0
}

// tensorAlign is of the offset of a tensor in an arena, in bytes.
const tensorAlign = 64
