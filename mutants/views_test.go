package mutants

// inViews has the bugs of buffers that lie in others.
func inViews() []mutant {
	const sound = "^TestViewsInPrograms$"
	return []mutant{{
		bug: "a share of a parameter lies beside its place", how: "one row further",
		file: "codegen/view.go",
		old:  "return at + elem*b.Value.Type.DType.Size()", new: "return at + elem*b.Value.Type.DType.Size() + 192",
		pkg: "./codegen", run: sound,
	}, {
		bug: "a share of a parameter lies beside its place", how: "columns are taken for rows",
		file: "codegen/view.go",
		old:  "|| several && n < whole.Local[d] {", new: "{",
		pkg: "./codegen", run: "^TestPlace$|^TestFits$",
	}, {
		bug: "a share of a parameter starts where no tensor may", how: "on ranks after the first",
		file: "codegen/view.go",
		old:  "return ok && elems*size%align == 0", new: "return ok && elems*size >= 0",
		pkg: "./codegen", run: "^TestFits$",
	}, {
		bug: "a share of a parameter starts where no tensor may", how: "on ranks that are neither first nor last",
		file: "codegen/view.go",
		old:  "mesh.Axes[axis].Size, 2", new: "mesh.Axes[axis].Size, 1",
		pkg: "./codegen", run: "^TestFitsEverywhere$",
	}, {
		bug: "a parameter is read when some of it is new", how: "its share is updated in its place before",
		file: "codegen/view.go",
		old:  "if last != i || !apart ||", new: "if last != i || !apart && false ||",
		pkg: "./codegen", run: "^TestViews$",
	}, {
		bug: "a parameter that is read when some of it is new is not refused", how: "what writes a part leaves the whole",
		file: "codegen/check.go",
		old:  "c.holds[other], c.torn[other] = nil, n", new: "c.torn[other] = n",
		pkg: "./codegen", run: "^TestViewMutants$",
	}, {
		bug: "a parameter that is read when some of it is new is not refused", how: "by the proof over expressions",
		file: "codegen/contents.go",
		old:  "*lost = content{}", new: "_ = lost",
		pkg: "./codegen", run: "^TestViewMutants$",
	}, {
		bug: "what the stream reads is written by another name", how: "a view is taken for memory of its own",
		file: "codegen/checkstream.go",
		old:  "if s.base(id) == s.base(r) {\n\t\t\t\treturn fail(in.Node.Results[i]", new: "if id == r {\n\t\t\t\treturn fail(in.Node.Results[i]",
		pkg: "./codegen", run: "^TestViewsOnStreams$",
	}, {
		bug: "a plan needs more memory than it does", how: "the planner gives shares of parameters bytes of their own",
		file: "codegen/repeat.go",
		old:  "if b.View && Fits(", new: "if false && Fits(",
		pkg: "./codegen", run: sound,
	}, {
		bug: "what is in its place is moved", how: "a slice is priced as a copy",
		file: "planner/cost/program.go",
		old:  "if !in.Moves(mesh) {\n\t\t\treturn 0, kind", new: "if false {\n\t\t\treturn 0, kind",
		pkg: "./planner/cost", run: "^TestViewsAreNotMoved$",
	}, {
		bug: "what is in its place is moved", how: "a gather is priced with the share of the rank",
		file: "planner/cost/shared.go",
		old:  "3 * (bytes - inPlace)", new: "3 * (bytes + 0*inPlace)",
		pkg: "./planner/cost", run: "^TestViewsAreNotMoved$",
	}}
}
