package mutants

// inTheCompiler has the bugs of what makes compiling fast: what is shared must be
// alike, and what is left out must not matter.
func inTheCompiler() []mutant {
	return []mutant{{
		bug: "nodes that differ share a signature", how: "whatever their attributes",
		file: "ir/resolve.go",
		old:  "shape := shapeAttr(attr)", new: "var shape Attr",
		pkg: "./models/gpt", run: "^TestOracleLossAndGradients$",
	}, {
		bug: "the operand of an overlapped collective is overwritten", how: "as if it ended at once",
		file: "codegen/overlap.go",
		old:  "last[running[0]] = i - 1", new: "last[running[0]] = running[0]",
		pkg: "./codegen", run: "^TestVerifyAcceptsOverlap$",
	}, {
		bug:  "a placement of a number matches no number",
		file: "partition/pattern.go",
		old:  "ok && digits > 0 && rest", new: "ok && rest",
		pkg: "./partition", run: "^TestPatternIsTheExpression$",
	}, {
		bug: "blocks that differ are held to be alike", how: "in the attributes of dropout",
		file: "planner/shrink.go",
		old:  "y, ok := y.(ir.DropoutAttr)\n", new: "y, ok := y.(ir.DropoutAttr)\n\t\tx.P = y.P\n",
		pkg: "./planner", run: "^TestShrinkOnlyWhatIsAlike$",
	}, {
		bug: "a removed block's neighbour reads what no longer exists", how: "not from the last block kept",
		file: "planner/shrink.go",
		old:  "s.blocks[s.n-1][s.at", new: "s.blocks[0][s.at",
		pkg: "./planner", run: "^TestShrinkIsTheSmallerModel$",
	}}
}
