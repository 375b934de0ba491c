package mutants

// inLlama has the bugs of what Llama does otherwise than GPT-2: RMSNorm, SwiGLU,
// rotary positions and a head of its own.
func inLlama() []mutant {
	const gradients = "^TestOracleLossAndGradients$"
	const kernel = "./runtime/cpu/kernel"
	return []mutant{{
		bug: "neighbours paired by rope", how: "instead of the halves of a head",
		file: "ir/interp/llama.go",
		old:  "x.at(b, t, part, h, i), x.at(b, t, part, h, i+width/2)", new: "x.at(b, t, part, h, 2*i), x.at(b, t, part, h, 2*i+1)",
		pkg: "./models/gpt", run: "^TestOracleLogits$",
	}, {
		bug:  "values rotated too",
		file: "ir/interp/llama.go",
		old:  "range x.group() + 1 {", new: "range x.group() + 2 {",
		pkg: "./models/gpt", run: "^TestOracleLogits$",
	}, {
		bug:  "gradient of rope not turned back",
		file: "ir/autodiff/rules.go",
		old:  "attr.Inverse = !attr.Inverse", new: "attr.Inverse = false",
		pkg: "./models/gpt", run: gradients,
	}, {
		bug: "gate and up swapped", how: "in the definition",
		file: "ir/interp/llama.go",
		old:  "return gate, gate + width", new: "return gate + width, gate",
		pkg: "./models/gpt", run: "^TestOracleLogits$",
	}, {
		bug:  "gate and up split apart",
		file: "ir/op.go",
		old:  `sig: "x[r* !two f] -> y[r* f]"`, new: `sig: "x[r* two f] -> y[r* f]"`,
		pkg: "./ir/interp", run: "^TestEveryRuleIsTrue$",
	}, {
		bug:  "positions not cut with the sequence",
		file: "ir/op.go",
		old:  `"qkv[b t !roles h !d] positions:i32[t]`, new: `"qkv[b t !roles h !d] positions:i32[s]`,
		pkg: "./ir/interp", run: "^TestEveryRuleIsTrue$",
	}, {
		bug: "a mean's gradient where none was taken", how: "RMSNorm as LayerNorm",
		file: "runtime/cpu/kernel/layernorm.go",
		old:  "if t.mean == nil {\n\t\t\t\tg = 0", new: "if t.mean == nil && cols < 0 {\n\t\t\t\tg = 0",
		pkg: kernel, run: "^TestRMSNorm$",
	}, {
		bug: "rope turns the wrong way", how: "in one half of a pair",
		file: "runtime/cpu/kernel/vector_generic.go",
		old:  "y*cos[i]+x*sin[i]", new: "y*cos[i]-x*sin[i]",
		pkg: kernel, run: "^TestRoPE$",
	}, {
		bug:  "rope counts each rank's tokens from zero",
		file: "runtime/cpu/kernel/rope.go",
		old:  "float64(t.positions[at]) * f", new: "float64(at) * f",
		pkg: kernel, run: "^TestRoPE$",
	}, {
		bug:  "waves between long and short turn as short ones",
		file: "ir/attr.go",
		old:  "short := min(max((turns-a.Low)/(a.High-a.Low), 0), 1)", new: "short := min(max((turns-a.Low)*1e9, 0), 1)",
		pkg: "./train", run: "^TestTrainsAsTransformers$",
	}, {
		bug: "long waves no longer", how: "in the kernel of a GPU",
		file: "cuda/kernel/rope.cu",
		old:  "if (factor > 0) {", new: "if (factor < 0) {",
		pkg: "./cuda/kernel", run: "^TestOps$",
	}, {
		bug:  "norms of a Llama have this model's own epsilon",
		file: "models/gpt/model.go",
		old:  "return t.RMSNorm(x, w, m.Eps())", new: "return t.RMSNorm(x, w, 1e-5)",
		pkg: "./train", run: "^TestTrainsAsTransformers$",
	}, {
		bug:  "every rank looks up every token",
		file: "partition/rulecost.go",
		old:  "if !along || from.Kind != ir.Replicate {", new: "if from != to {",
		pkg: "./partition", run: "^TestBlocksAreGivenTheStreamAlike$",
	}, {
		bug:  "a head of its own that is the token table",
		file: "models/gpt/model.go",
		old:  "if !m.TieEmbeddings {", new: "if !m.TieEmbeddings && m.NLayer < 0 {",
		pkg: "./models/gpt", run: "^TestCounts$",
	}}
}
