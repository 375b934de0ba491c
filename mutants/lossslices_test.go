package mutants

// inLossSlices has the bugs of the head and the loss in slices.
func inLossSlices() []mutant {
	const parity, proof = "^TestLossSlicesParity$", "^TestLossSlices$"
	return []mutant{{
		bug: "a plan with the loss in slices is taken for slower than it is", how: "the gradient of a head that is whole is summed as with one slice",
		file: "planner/slices.go",
		old:  "if !s.of.ofBlock[x.Node] && variesBySlices(x.Node) {", new: "if false {",
		pkg: "./planner", run: "^TestSumsOfAHeadThatIsWhole$",
	}, {
		bug: "a plan with the loss in slices is taken for slower than it is", how: "its weight is copied from the host twice, as with one slice",
		file: "planner/slices.go",
		old:  "return codegen.Collective(n.Op) || codegen.HostCopy(n.Op)", new: "return ofTP(n)",
		pkg: "./planner", run: "^TestCostIsSimulation$/^seed_2016_case_30$",
	}, {
		bug: "a plan with the loss in slices is taken for slower than it is", how: "under gpipe, where the head comes after all forward passes",
		file: "planner/slices.go",
		old:  "c.head += c.pipe.headForward()", new: "c.head += 0",
		pkg: "./planner", run: "^TestSlicesUnderGPipe$",
	}, {
		bug: "a plan with the loss in slices is taken for slower than it is", how: "more slices of a head that is whole communicate as fewer do",
		file: "planner/slices.go",
		old:  " && p.skel.outline.split == split{}", new: "",
		pkg: "./planner", run: "^TestSlicesBesideAModuleThatIsWhole$",
	}, {
		bug: "a plan with the loss in slices is taken for larger than it is", how: "a gradient is whole until the update, as with one slice",
		file: "planner/slices.go",
		old:  "less := sizes[x.kind] -", new: "less := 0 * sizes[x.kind] *",
		pkg: "./planner", run: "^TestGradientsInSlices$",
	}, {
		bug: "a plan with the loss in slices is taken for larger than it is", how: "the head's gradient is apart from the embedding's, as with one slice",
		file: "planner/slices.go",
		old:  "if joined[x.Value.Def] {", new: "if joined[x.Value.Def] && false {",
		pkg: "./planner", run: "^TestGradientsInSlices$",
	}, {
		bug: "every slice of the loss communicates what one would do for all", how: "the gradient of the head is reduced under ZeRO 2",
		file: "partition/lossslices.go",
		old:  "early: p.ZeRO >= 2,", new: "early: false,",
		pkg: "./codegen", run: "^TestLossSlicesReduceOnce$",
	}, {
		bug: "every slice of the loss communicates what one would do for all", how: "its weight is copied from the host",
		file: "partition/offload.go",
		old:  "if strings.Contains(user.Name, sliceSuffix) {", new: "if false {",
		pkg: "./codegen", run: "^TestLossSlicesFetchOnce$",
	}, {
		bug: "a sum that a pass makes lacks a term", how: "the kernel of each overwrites what was there",
		file: "codegen/layout.go",
		old:  "b.modes[r.ID] = Always\n\t\t\t\t\t}\n\t\t\t\t\tbegun", new: "b.modes[r.ID] = Overwrite\n\t\t\t\t\t}\n\t\t\t\t\tbegun",
		pkg: "./codegen", run: "^TestLossSlicesReduceOnce$",
	}, {
		bug: "a sum that a pass makes lacks a term", how: "a program in which one lies elsewhere passes",
		file: "codegen/check.go",
		old:  "c.canon(sum.Results[0]) == v && c.added[sum] != len(sum.Args)", new: "false",
		pkg: "./codegen", run: "^TestSumsOfSlicesAreChecked$",
	}, {
		bug: "a sum that a pass makes lacks a term", how: "a program in which one overwrites the others passes",
		file: "codegen/check.go",
		old:  "if in.Accum[i] != want {\n\t\treturn c.fail(in.Node", new: "if in.Accum[i] != want && false {\n\t\treturn c.fail(in.Node",
		pkg: "./codegen", run: "^TestSumsOfSlicesAreChecked$",
	}, {
		bug: "a sum that a pass makes lacks a term", how: "for the proof, what is added takes the place of what was there",
		file: "codegen/contents.go",
		old:  "e.exprs.sum([]*expr{cell.expr, x}, cell.expr.name)", new: "x",
		pkg: "./codegen", run: "^TestLossSlicesReduceOnce$",
	}, {
		bug: "a slice of the loss is left out", how: "all positions are the last slice's",
		file: "partition/lossslices.go",
		old:  "ir.RowsAttr{Part: part, Parts: s.parts}", new: "ir.RowsAttr{Part: s.parts - 1 + 0*part, Parts: s.parts}",
		pkg: "./codegen", run: proof,
	}, {
		bug: "a slice of the loss is left out", how: "gradients of the head's operand are joined in another order",
		file: "partition/lossslices.go",
		old:  "m, err := s.add(ir.OpJoinRows, nil, n.Name, -1, n, s.terms[r])", new: "slices.Reverse(s.terms[r])\n\t\t\t\tm, err := s.add(ir.OpJoinRows, nil, n.Name, -1, n, s.terms[r])",
		pkg: "./codegen", run: proof,
	}, {
		bug: "a slice of the loss is left out", how: "of the gradient of a weight that only the update reads",
		file: "partition/lossslices.go",
		old:  "args = append(args, terms...)", new: "args = append(args, terms[1:]...)",
		pkg: "./codegen", run: proof,
	}, {
		bug: "a slice of the loss that is left out is not refused", how: "some parts are taken for the sum",
		file: "codegen/sliced.go",
		old:  "if !ok || len(found[k]) < rows.Parts {", new: "if !ok || len(found[k]) < rows.Parts-1 {",
		pkg: "./codegen", run: "^TestLossSlicesAreProven$",
	}, {
		bug: "a slice of the loss that is left out is not refused", how: "rows are joined in any order",
		file: "codegen/sliced.go",
		old:  "|| rows != (ir.RowsAttr{Part: part, Parts: len(args)}) {", new: "|| rows.Parts != len(args) || part < 0 {",
		pkg: "./codegen", run: "^TestLossSlicesAreProven$",
	}, {
		bug: "positions of another slice", how: "the CPU takes the first",
		file: "runtime/cpu/context.go",
		old:  "min(k.Node.Attr.(ir.RowsAttr).Part*n, len(d.arg(k, 0)))", new: "min(0*k.Node.Attr.(ir.RowsAttr).Part, n)",
		pkg: ".", run: parity,
	}, {
		bug: "logits of all positions are kept", how: "the forward pass makes them",
		file: "partition/lossslices.go",
		old:  "s.head, s.last, s.phase = append(s.head, n), i, n.Phase", new: "s.head, s.last = append(s.head, n), i",
		pkg: ".", run: "^TestLossSlicesTakeLess$",
	}, {
		bug: "plans with the loss in slices are priced without", how: "by programs that stand for theirs",
		file: "planner/blueprint.go",
		old:  "Offload: key.offload, LossSlices: key.slices,", new: "Offload: key.offload,",
		pkg: "./planner", run: "^TestLossSlicesArePlanned$",
	}, {
		bug: "a slice whose product is put off overwrites what others have summed", how: "the first in the graph, not in the program",
		file: "codegen/layout.go",
		old:  "\tb.inPieces()\n\tb.orderMerged()\n", new: "\tb.inPieces()\n",
		pkg: "./codegen", run: "^TestLossSlicesOutOfOrder$",
	}, {
		bug: "a sum of slices is complete with the last in the graph", how: "which is not the last to run",
		file: "codegen/check.go",
		old:  "order[a.Def] > order[last.Def]", new: "order[a.Def] >= 0",
		pkg: "./codegen", run: "^TestLossSlicesOutOfOrder$",
	}, {
		bug: "slices of the loss are not looked at where they pay", how: "as half of the most fit",
		file: "planner/slices.go",
		old:  "o.slices = 2 * max(1, o.slices)", new: "o.slices = 2 * max(1, min(o.slices, 1))",
		pkg: "./planner", run: "^TestSlicesAreSearched$",
	}, {
		bug: "slices of the loss are not looked at where they pay", how: "as the last position keeps logits without them",
		file: "planner/slices.go",
		old:  "	p.headless = true\n	p.leaveHead()\n", new: "",
		pkg: "./planner", run: "^TestSlicesAreSearched$",
	}, {
		bug: "slices of the loss are not looked at where they pay", how: "as a bound says that a plan fits which is too slow to be laid out",
		file: "planner/slices.go",
		old:  "return !c.laid[n] && !c.learned[c.lastWith(n)] &&", new: "return false && !c.laid[n] && !c.learned[c.lastWith(n)] &&",
		pkg: "./planner", run: "^TestSlicesOfWhatIsNotLaidOut$",
	}, {
		bug: "slices of the loss are not looked at where they pay", how: "as values that weights' gradients read count twice",
		file: "planner/slices.go",
		old:  "codegen.Temp || x.apart || x.Body", new: "codegen.Temp || x.Body",
		pkg: "./planner", run: "^TestCostIsSimulation$/^seed_12$",
	}, {
		bug: "slices of the loss are not looked at where they pay", how: "as if ranks shared the products of a head that is whole in one way",
		file: "planner/slices.go",
		old:  "unsure = unsure || readsWhole(x.Node, mesh)", new: "unsure = unsure || false && readsWhole(x.Node, mesh)",
		pkg: "./planner", run: "^FuzzCosts$",
	}, {
		bug: "a certificate leaves out slices of the loss", how: "and nobody minds",
		file: "planner/declared.go",
		old:  "return append([]int{0}, d.slices...)", new: "return []int{0}",
		pkg: "./planner", run: "^TestSlicesAreSearched$",
	}}
}
