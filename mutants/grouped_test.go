package mutants

// inGroupedHeads has the bugs of heads that share keys and values.
func inGroupedHeads() []mutant {
	const kernel = "./runtime/cpu/kernel"
	return []mutant{{
		bug: "queries of a group mixed up", how: "all read the first",
		file: "runtime/cpu/kernel/attention.go",
		old:  "x.part += g", new: "x.part += 0 * g",
		pkg: kernel, run: "^TestAttention$",
	}, {
		bug: "gradient of shared keys", how: "of the last query of a group alone",
		file: "runtime/cpu/kernel/attention_grad.go",
		old:  "if t.keys != nil || x.g > 0 {", new: "if t.keys != nil {",
		pkg: kernel, run: "^TestAttention$",
	}, {
		bug: "same dropout mask for all queries of a group", how: "backward and forward alike",
		file: "runtime/cpu/kernel/attention.go",
		old:  "uint64(s.packed())+uint64(s.First+q.g))", new: "uint64(s.packed()))",
		pkg: kernel, run: "^TestAttention$",
	}, {
		bug: "queries of a group cut from their keys", how: "by a rule of the signature",
		file: "ir/op.go",
		old:  `sig: "qkv[b !t !roles h !d] seed`, new: `sig: "qkv[b !t roles h !d] seed`,
		pkg: "./ir/interp", run: "^TestEveryRuleIsTrue$",
	}, {
		bug: "gradient of queries that other ranks do", how: "left as it was",
		file: "runtime/cpu/kernel/attention_grad.go",
		old:  "\t\tt.clearOthers(u)\n", new: "",
		pkg: kernel, run: "^TestAttentionOfSomeQueries$",
	}, {
		bug: "attention repeated on every rank", how: "backward",
		file: "partition/rulecost.go",
		old:  "n.Op == ir.OpAttentionGrad && i == 2", new: "n.Op == ir.OpAttentionGrad && i == -1",
		pkg: ".", run: "^TestMoreRanksThanGroups$",
	}, {
		bug: "heads of other groups share keys", how: "consecutive queries instead of those of one group",
		file: "ir/interp/attention.go",
		old:  "dot(qkv.head(b, i, g, h), qkv.head(b, j, group+key, h))", new: "dot(qkv.head(b, i, g, (h+g)%heads), qkv.head(b, j, group+key, (h+g)%heads))",
		pkg: "./models/gpt", run: "^TestOracleLogits$",
	}}
}
