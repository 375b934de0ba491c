package mutants

// inTheReproducible has the bugs that would make train.reproducible a promise.
func inTheReproducible() []mutant {
	const same = "^TestReproducible$"
	return []mutant{{
		bug: "bits depend on the plan", how: "weight gradients are summed in f32",
		file: "ir/exact/exact.go",
		old:  "if batch < 0 || keeps(i) {", new: "if batch < 0 || keeps(i) || op == ir.OpMatMul {",
		pkg: ".", run: same,
	}, {
		bug: "bits depend on the plan", how: "the norm is summed in f32",
		file: "ir/exact/exact.go",
		old:  "case n.Op == ir.OpSumSquares:", new: "case n.Op == ir.OpInvalid:",
		pkg: ".", run: same,
	}, {
		bug: "bits depend on the plan", how: "a micro-batch is one term",
		file: "runtime/cpu/fixed.go",
		old:  "batch, inner := sequences(k, contracted)", new: "batch, inner := sequences(k, contracted)\n\tbatch, inner = min(batch, 1), batch*inner",
		pkg: "./runtime/cpu", run: "^TestConformance$/^1_thread$/^grouping$",
	}, {
		bug: "bits depend on the plan", how: "an instruction set rounds otherwise",
		file: "runtime/cpu/kernel/fixed.go",
		old:  "n := int64(math.RoundToEven(y))", new: "n := int64(y)",
		pkg: "./runtime/cpu/kernel", run: "^TestAddAsFixed$",
	}, {
		bug: "a gradient that overflows fixed point wraps", how: "in a term",
		file: "runtime/cpu/fixed.go",
		old:  "if kernel.AddAsFixed(d.pool, s.sum, term, s.frac) {", new: "if kernel.AddAsFixed(d.pool, s.sum, term, s.frac) || true {",
		pkg: "./runtime/cpu", run: "^TestConformance$/^1_thread$/^overflow$",
	}, {
		bug: "a gradient that overflows fixed point wraps", how: "in a reduction over ranks",
		file: "runtime/cpu/fixed.go",
		old:  "} else if !kernel.AddFixed(d.pool, acc, in) {", new: "} else if !kernel.AddFixed(d.pool, acc, in) && false {",
		pkg: "./runtime/cpu", run: "^TestConformance$/^1_thread$/^fixed_all_reduce$",
	}}
}
