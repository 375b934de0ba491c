package mutants

// inPieces has the bugs of products and collectives that are made in parts.
func inPieces() []mutant {
	const checked, searched = "^TestPiecesAreChecked$", "^TestPiecesAreSearched$"
	return []mutant{{
		bug: "a part is made of what is not there yet", how: "nobody looks which parts are",
		file: "codegen/check.go",
		old:  "case c.made[in.Args[i]] > 0 && !(in.Part", new: "case c.made[in.Args[i]] < 0 && !(in.Part",
		pkg: "./codegen", run: checked,
	}, {
		bug: "a part is made of what is not there yet", how: "nobody looks what it is made of",
		file: "codegen/contents.go",
		old:  "if held.made > 0 && !(in.Part", new: "if held.made < 0 && !(in.Part",
		pkg: "./codegen", run: checked,
	}, {
		bug: "a part is missing", how: "whatever part follows is the next",
		file: "codegen/pieces.go",
		old:  "if in.Parts != parts || in.Part != i {", new: "if in.Parts != parts {",
		pkg: "./codegen", run: checked,
	}, {
		bug: "a part is missing", how: "what is computed needs none before it",
		file: "codegen/contents.go",
		old:  "if in.Part > 0 && (cell.made != in.Part", new: "if in.Part < 0 && (cell.made != in.Part",
		pkg: "./codegen", run: checked,
	}, {
		bug: "the part that is gathered is read", how: "parts are taken for others",
		file: "codegen/checkstream.go",
		old:  "in.Parts != other.Parts || in.Part == other.Part {", new: "in.Parts != other.Parts {",
		pkg: "./codegen", run: checked,
	}, {
		bug: "a part starts where no tensor may", how: "whatever the sizes",
		file: "codegen/pieces.go",
		old:  "if bytes%align != 0 {", new: "if bytes%align < 0 {",
		pkg: "./codegen", run: "^TestPieces$",
	}, {
		bug: "ranks exchange the first sequences again and again", how: "parts lie where the whole does",
		file: "runtime/action.go",
		old:  "x.Offset += int64(share.Off)", new: "x.Offset += 0 * int64(share.Off)",
		pkg: ".", run: "^TestPiecesParity$",
	}, {
		bug: "parts are taken for the whole", how: "by kernels that are made together",
		file: "runtime/outline.go",
		old:  "launched(in.Node.Op) && in.Parts == 0", new: "launched(in.Node.Op)",
		pkg: ".", run: "^TestPiecesParity$",
	}, {
		bug: "more bytes are counted than are moved", how: "every part counts as all",
		file: "codegen/commbytes.go",
		old:  "out := in.Slab(p.Mesh, n.Results[0], at)", new: "out := p.Slab(n.Results[0], at)",
		pkg: "./codegen", run: "^TestVerifyAcceptsPieces$",
	}, {
		bug: "parts take as long as the whole", how: "the gathers",
		file: "codegen/pieces.go",
		old:  "ok && elems > 0", new: "ok && elems < 0",
		pkg: "./planner/sim", run: "^TestPiecesHideCommunication$",
	}, {
		bug: "the last block is priced as others, whose gradient is gathered in parts", how: "positions are cut after its gather",
		file: "codegen/pieces.go",
		old:  "n.Op == ir.OpSlice && n.Block()", new: "n.Op == ir.OpFold && n.Block()",
		pkg: "./planner", run: "^TestBlocksBeginAlike$",
	}, {
		bug: "floor above what plans take", how: "a zero-bubble schedule hides nothing of parts in it",
		file: "planner/beside.go",
		old:  "if in.Parts > 0 { // the kernels", new: "if in.Parts < 0 { // the kernels",
		pkg: "./planner", run: "^TestFloorsOfLargeModels$",
	}, {
		bug: "floor above what plans take", how: "what ZeRO gathers keeps products whole",
		file: "codegen/pieces.go",
		old:  "case first >= 0 && (b.ofWeights(n) ||", new: "case first >= 0 && (n == nil ||",
		pkg: "./codegen", run: "^TestVerifyAcceptsPieces$",
	}, {
		bug: "a faster plan is left", how: "floors of plans in any number of parts are those of plans in one",
		file: "planner/pieces.go",
		old:  "t.fastest(&each[k])", new: "_ = each[k]",
		pkg: "./planner", run: searched,
	}, {
		bug: "a faster plan is left", how: "plans in four parts",
		file: "planner/pieces.go",
		old:  "for n := 2; n <= mostPieces; n *= 2 {", new: "for n := 2; n < mostPieces; n *= 2 {",
		pkg: "./planner", run: searched,
	}, {
		bug: "a faster plan is left", how: "parts of which one is empty",
		file: "planner/pieces.go",
		old:  "pieces < 2 || 2*size > pieces }", new: "pieces < 2 || size >= pieces }",
		pkg: "./planner", run: searched,
	}, {
		bug: "floor above what plans take", how: "of a product and its sum each part has the one before beside it",
		file: "planner/pieces.go",
		old:  "time += first + max(prices[0].Slows(second), second-first)", new: "time += first + second",
		pkg: "./planner", run: "^TestTrunksTellWhatPartsTake$",
	}, {
		bug: "a certificate that leaves out plans is accepted", how: "nobody asks for those in several parts",
		file: "planner/declared.go",
		old:  "	return []int{0, 2, 4}\n", new: "	return []int{0}\n",
		pkg: "./planner", run: searched,
	}, {
		bug: "the gradient with which a block begins is gathered whole", how: "it is called after another block",
		file: "codegen/pieces.go",
		old:  "enters := c == first &&", new: "enters := c == second &&",
		pkg: "./codegen", run: "^TestPiecesBackward$",
	}, {
		bug: "sums are computed where their terms are still made", how: "in place, in parts",
		file: "codegen/layout.go",
		old:  " || b.inPiecesWith(x.Def) == n {", new: " {",
		pkg: "./codegen", run: "^TestVerifyAcceptsPieces$",
	}, {
		bug: "collectives beside whole products are made in parts", how: "nobody asks what beside.go has found",
		file: "codegen/pieces.go",
		old:  "b.kernelsBeside[c.ID()] > 0 || b.besideOf", new: "b.besideOf",
		pkg: "./codegen", run: "^TestPiecesBackward$",
	}, {
		bug: "a zero-bubble plan is priced by the program of another schedule", how: "which has other parts",
		file: "planner/price.go",
		old:  "return s.plan.Overlap || s.plan.OverlapTP || s.plan.TPPieces > 1", new: "return s.plan.Overlap || s.plan.OverlapTP",
		pkg: "./planner", run: "^TestCostInPiecesIsSimulation$/^seed_12$",
	}, {
		bug: "floor above what plans take", how: "of what a zero-bubble schedule has in parts nothing is hidden",
		file: "planner/beside.go",
		old:  "all.add(in, max(slow, time-inParts))", new: "all.add(in, time)",
		pkg: "./planner", run: "^TestFloorsOfLargeModels$",
	}, {
		bug: "floor above what plans take", how: "parts of one program count for all",
		file: "planner/undecided.go",
		old:  "if in.Parts > 0 && !entering[in.Node] {", new: "if in.Parts < 0 && !entering[in.Node] {",
		pkg: "./planner", run: "^TestUndecided$",
	}, {
		bug: "no timeline of a plan in parts", how: "a part of a product waits for all of the gather",
		file: "explain/spans.go",
		old:  "s.Parts > 0 && made {", new: "s.Parts < 0 && made {",
		pkg: "./explain", run: "^TestPredictedTrace$",
	}}
}
