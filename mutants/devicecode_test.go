//go:build mutants

package mutants

// inTheDeviceCode has the bugs of what GPUs run, as it runs on the CPU.
func inTheDeviceCode() []mutant {
	const pkg = "./cuda/kernel"
	return []mutant{{
		bug: "device code: values are read before they have come", how: "no barrier after their copy",
		file: "cuda/kernel/attention_mma.cu",
		old:  "		copy_wait<0>();\n		sync_block(); // values have come, and nobody reads keys\n", new: "		sync_block();\n",
		pkg: pkg, run: "^TestTensorCores$/^attention$/^0$",
	}, {
		bug: "device code: probabilities are read before they are written", how: "no barrier in the gradient of keys",
		file: "cuda/kernel/attention_grad.cu",
		old:  "			sync_block();\n			add_product(out_k,", new: "			add_product(out_k,",
		pkg: pkg, run: "^TestOps$/^ops$/^attention_grad$",
	}, {
		bug: "device code: the mask is that of the part, not of the whole", how: "heads are counted from the rank's first",
		file: "cuda/kernel/heads.cu",
		old:  "h = first_head + head % heads;", new: "h = head % heads;",
		pkg: pkg, run: "^TestAttentionMask$",
	}, {
		bug: "device code: a sum is not added to what is there", how: "a bias gradient of the second micro-batch",
		file: "cuda/kernel/sum.cu",
		old:  "narrow(y[c], add ? wide(y[c]) + sum : sum);", new: "narrow(y[c], sum);",
		pkg: pkg, run: "^TestOps$/^ops$/^sum_to$",
	}, {
		bug: "device code: ids are noted over those of before", how: "the order of warps decides",
		file: "cuda/kernel/embedding.cu",
		old:  "		sync_block();\n	}\n	for (int k = 0; k < 2; k++) {", new: "	}\n	for (int k = 0; k < 2; k++) {",
		pkg: pkg, run: "^TestOps$/^ops$/^embedding_grad$",
	}}
}
