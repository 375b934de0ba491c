package mutants

// inSums has the bugs of gradients that lie where activations were, of the only micro-batch of a step.
func inSums() []mutant {
	const floors, lone = "^TestCostIsSimulation$", "^TestLoneGradientsAreNotCast$"
	return []mutant{{
		bug: "a micro-batch writes over sums of the one before", how: "nobody looks",
		file: "codegen/contents.go",
		old:  "if t.Phase == ir.Update && c.MicroBatches > 1 {", new: "if t.Phase == ir.Update && c.MicroBatches > 2 {",
		pkg: "./codegen", run: "^TestSumsAreChecked$",
	}, {
		bug: "a micro-batch writes over sums of the one before", how: "they lie in slots of several",
		file: "codegen/layout.go",
		old:  "if mesh.Size(partition.AxisMB) == 1 {", new: "if mesh.Size(partition.AxisMB) <= 2 {",
		pkg: "./codegen", run: "^TestCheckAcceptsEveryProgram$|^TestSumsInSlots$",
	}, {
		bug: "memory freed while it is reduced", how: "until the update",
		file: "codegen/layout.go",
		old:  "buf.To = max(buf.To, b.beforeUpdate())", new: "buf.To = max(buf.To, 0*b.beforeUpdate())",
		pkg: "./codegen", run: "^TestSumsInSlots$",
	}, {
		bug: "memory freed while it is reduced", how: "nobody looks",
		file: "codegen/checkstream.go",
		old:  "b.To >= update)", new: "b.To >= 0*update)",
		pkg: "./codegen", run: "^TestSumsAreChecked$",
	}, {
		bug: "peak of a plan not that of its program", how: "gradients are placed in another order",
		file: "codegen/pack.go",
		old:  "cmp.Compare(a.filled, b.filled), ", new: "",
		pkg: "./codegen", run: "^TestPack$",
	}, {
		bug: "floor of memory above what plans need", how: "gradients of the only micro-batch take room throughout",
		file: "planner/memory.go",
		old:  "if codegen.SumsOn(mesh) == codegen.Persist {", new: "if codegen.SumsOn(mesh) != codegen.Temp {",
		pkg: "./planner", run: floors,
	}, {
		bug: "floor of memory above what plans need", how: "gradients of the only micro-batch take room throughout, in trunks",
		file: "planner/relax.go",
		old:  "m == 1 && o.stages() == 1)", new: "m == 0 && o.stages() == 1)",
		pkg: "./planner", run: floors,
	}, {
		bug: "gradients of the only micro-batch are cast", how: "as those of others",
		file: "partition/apply.go",
		old:  "if lone {", new: "if lone && g == nil {",
		pkg: "./codegen", run: lone,
	}, {
		bug: "gradients of several micro-batches are summed in two bytes", how: "as if there were one",
		file: "partition/apply.go",
		old:  "if lone {", new: "if lone || g != nil {",
		pkg: "./codegen", run: lone,
	}, {
		bug: "gradients of several micro-batches are summed in two bytes", how: "nobody looks",
		file: "codegen/expression.go",
		old:  "if x.lone && e.op == ir.OpCast", new: "if e.op == ir.OpCast",
		pkg: "./codegen", run: "^TestSeveralMicroBatchesAreSummedWide$",
	}, {
		bug: "price of a plan not that of its program", how: "it casts gradients of the only micro-batch",
		file: "planner/blueprint.go",
		old:  "return m == 1 && b.widens", new: "return m == 0 && b.widens",
		pkg: "./planner", run: floors,
	}, {
		bug: "floor above what a plan takes", how: "gradients of the only micro-batch are cast",
		file: "planner/relax.go",
		old:  "trunk := s.trunkFor(o, lone)", new: "trunk := s.trunkFor(o, lone && o.zero > 3)",
		pkg: "./planner", run: "^TestFloorsOfUpdates$",
	}}
}
