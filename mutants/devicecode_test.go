package mutants

// inTheDeviceCode has the bugs of what GPUs run, as it runs on the CPU.
func inTheDeviceCode() []mutant {
	const pkg = "./cuda/kernel"
	return []mutant{{
		bug: "device code: values are read before they have come", how: "no barrier after their copy",
		file: "cuda/kernel/attention_mma.cu",
		old:  "		copy_wait<0>();\n		show_copies();\n", new: "		if (j0 > 0) copy_wait<1>();\n		show_copies();\n",
		pkg: pkg, run: "^TestTensorCores$/^attention$/^0$",
	}, {
		bug: "device code: values are overwritten while others read them", how: "the next ones are copied before a barrier, but awaited after it",
		file: "cuda/kernel/attention_mma.cu",
		old:  "		sync_block(); // keys have arrived, and no warp reads the ones before\n		if (j0 + step <= last) load(j0 + step);\n",
		new:  "		if (j0 + step <= last) load(j0 + step);\n		sync_block();\n",
		pkg:  pkg, run: "^TestWatched$/^attention$/^0$",
	}, {
		bug: "device code: a warp overwrites rows that its other lanes read", how: "no barrier of the warp before results go through a tile",
		file: "cuda/kernel/tiles.cu",
		old:  "	const int chunks = width / 8;\n	sync_warp();\n", new: "	const int chunks = width / 8;\n",
		pkg: pkg, run: "^TestWatchedWithoutWarpgroups$/^attention_grad$/^9$",
	}, {
		bug: "device code: scores are read before they are done", how: "the product of a warpgroup is not awaited",
		file: "cuda/kernel/attention_mma.cu",
		old:  "		settled<0>(score);\n", new: "",
		pkg: pkg, run: "^TestTensorCores$/^attention$/^0$",
	}, {
		bug: "device code: products read what was in a tile before", how: "copies that have arrived are not shown to warpgroups",
		file: "cuda/kernel/attention_mma_grad.cu",
		old:  "		show_copies();\n		sync_block(); // queries", new: "		sync_block(); // queries",
		pkg: pkg, run: "^TestTensorCores$/^attention_grad$/^3$",
	}, {
		bug: "device code: products read what was in a tile before", how: "copies are shown to warpgroups after the barrier",
		file: "cuda/kernel/attention_mma.cu",
		old:  "		show_copies();\n		sync_block(); // keys", new: "		sync_block();\n		show_copies(); // keys",
		pkg: pkg, run: "^TestTensorCores$/^attention$/^0$",
	}, {
		bug: "device code: without warpgroups products have other columns", how: "those of the first rows of a tile",
		file: "cuda/kernel/tiles.cu",
		old:  "right<width>(y, b, 16 * n, k);", new: "right<width>(y, b, 0, k);",
		pkg: pkg, run: "^TestWithoutWarpgroups$/^attention$/^0$",
	}, {
		bug: "device code: sums of exponentials have two bases", how: "what was summed before the base rose is not scaled",
		file: "cuda/kernel/attention_mma.cu",
		old:  "top[i] = next, total[i] *= shrink;", new: "top[i] = next;",
		pkg: pkg, run: "^TestTensorCores$/^attention$/^1$",
	}, {
		bug: "device code: a warpgroup skips queries that see its keys", how: "the tile on the diagonal",
		file: "cuda/kernel/attention_mma_grad.cu",
		old:  "s.row0 + now + step <= j_mine)", new: "s.row0 + now <= j_mine)",
		pkg: pkg, run: "^TestTensorCores$/^attention_grad$/^3$",
	}, {
		bug: "device code: a query sees keys after it", how: "a tile on the diagonal is taken for one below it",
		file: "cuda/kernel/attention_mma.cu",
		old:  "if (j0 + step - 1 > least)", new: "if (j0 > least)",
		pkg: pkg, run: "^TestTensorCores$/^attention$/^0$",
	}, {
		bug: "device code: keys have gradients of queries before them", how: "a tile on the diagonal is taken for one below it",
		file: "cuda/kernel/attention_mma_grad.cu",
		old:  "s.row0 + now < j_mine + 63", new: "s.row0 + now < j_mine",
		pkg: pkg, run: "^TestTensorCores$/^attention_grad$/^3$",
	}, {
		bug: "device code: a query's product with its gradient has those of others", how: "of all rows of a warp",
		file: "cuda/kernel/attention_delta.cu",
		old:  "int mask = many / 2;", new: "int mask = 16;",
		pkg: pkg, run: "^TestOps$/^ops$/^attention_grad$/^64$",
	}, {
		bug: "device code: probabilities are read before they are written", how: "no barrier in the gradient of keys",
		file: "cuda/kernel/attention_grad.cu",
		old:  "			sync_block();\n			add_product(out_k,", new: "			add_product(out_k,",
		pkg: pkg, run: "^TestOps$/^ops$/^attention_grad$/^64$",
	}, {
		bug: "device code: the mask is that of the part, not of the whole", how: "heads are counted from the rank's first",
		file: "cuda/kernel/attention.go",
		old:  "int32(s.Offset[3])", new: "int32(0)",
		pkg: pkg, run: "^TestAttentionMask$",
	}, {
		bug: "device code: a sum is not added to what is there", how: "a bias gradient of the second micro-batch",
		file: "cuda/kernel/sum.cu",
		old:  "narrow(y[c], add ? wide(y[c]) + sum : sum);", new: "narrow(y[c], sum);",
		pkg: pkg, run: "^TestOps$/^ops$/^sum_to$",
	}, {
		bug: "device code: memory after a tensor is read", how: "four ids at a time, where fewer are left; what is read has no effect",
		file: "cuda/kernel/embedding.cu",
		old:  "packed && at + 4 <= n", new: "packed && at < n",
		pkg: pkg, run: "^TestWatched$/^ops$/^embedding_grad$",
	}, {
		bug: "device code: ids are looked up before all are noted", how: "no barrier between",
		file: "cuda/kernel/embedding.cu",
		old:  "- first - low);\n			}\n		}\n		sync_block();\n", new: "- first - low);\n			}\n		}\n",
		pkg: pkg, run: "^TestOps$/^many_ids$",
	}, {
		bug: "device code: lanes of a warp do together what they come to in different ways", how: "which is undefined, whatever comes of it here",
		file: "cuda/kernel/embedding.cu",
		old:  "u32 lanes = ballot(some >> j & 1);", new: "u32 lanes = lane() < 16 ? ballot(some >> j & 1) : ballot(some >> j & 1);",
		pkg: pkg, run: "^TestOps$/^many_ids$",
	}, {
		bug: "device code: ids are listed over each other", how: "those of lanes below are forgotten",
		file: "cuda/kernel/embedding.cu",
		old:  "				to += popcount(lanes & ((1u << lane()) - 1));\n", new: "",
		pkg: pkg, run: "^TestOps$/^many_ids$",
	}, {
		bug: "device code: averages of rows are used before all are known", how: "no barrier in the gradient of norms",
		file: "cuda/kernel/norm.cu",
		old:  "		sync_block();\n		int here", new: "		int here",
		pkg: pkg, run: "^TestFused$",
	}, {
		bug: "device code: sums of warps are added before all are given", how: "no barrier in the gradient of norms whose rows are kept",
		file: "cuda/kernel/norm.cu",
		old:  "shift[k], false); });\n		}\n		sync_block();\n", new: "shift[k], false); });\n		}\n",
		pkg: pkg, run: "^TestFused$",
	}, {
		bug: "device code: of many tensors in one launch the second is left out", how: "blocks look no further than the first",
		file: "cuda/kernel/adamw.cu",
		old:  "while (at + 1 < count && all", new: "while (at + 2 < count && all",
		pkg: pkg, run: "^TestFused$/^updates$",
	}, {
		bug: "device code: what AdamW adds to a moment is the complement of a rounded decay", how: "of the first",
		file: "cuda/kernel/adamw.cu",
		old:  "gain1 = (float)(1 - beta1)", new: "gain1 = 1 - b1",
		pkg: pkg, run: "^TestOps$/^first_moments$",
	}, {
		bug:  "device code: kernels done as one overtake what they depend on",
		file: "cuda/kernel/fuse.go",
		old:  "if conflict(b, k) {", new: "if conflict(b, k) && len(before) == 0 {",
		pkg: pkg, run: "^TestFuseKeepsOrder$",
	}, {
		bug: "device code: a statistic of a row overwrites rows that are still read", how: "kernels done as one, wherever results lie",
		file: "cuda/kernel/fuse.go",
		old:  "if overlap(r, t) && !row {", new: "if overlap(r, t) && !row && together {",
		pkg: pkg, run: "^TestFuseKeepsOrder$",
	}, {
		bug: "the epilogue's vector is that of the first layer", how: "the descriptor is not told anew",
		file: "cuda/driver/cublaslt.go",
		old:  "	if err := b.set(p, descVector, uint64(vector)); err != nil {\n		return err\n	}\n	return b.run", new: "	return b.run",
		pkg: "./cuda/driver", run: "^TestEpilogues$",
	}}
}
