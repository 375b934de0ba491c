package mutants

// inSequenceParts has the bugs of rows of the batch that are parts of sequences.
func inSequenceParts() []mutant {
	const attention = "^TestConformance$/^1_thread$/^ops$/^attention$"
	return []mutant{{
		bug: "sequences in parts: log-sums of a shard are not those of its rows", how: "they lie as if each sequence were a row",
		file: "runtime/cpu/kernel/attention.go",
		old:  "parts, row := max(s.Parts, 1), x.at+r", new: "parts, row := 1, x.at+r",
		pkg: "./runtime/cpu", run: attention,
	}, {
		bug: "sequences in parts: log-sums of a tile lie in the part that it begins in", how: "and beyond",
		file: "runtime/cpu/kernel/attention.go",
		old:  "+x.u%s.H)*length + row%length", new: "+x.u%s.H)*length + x.at%length + r",
		pkg: "./runtime/cpu/kernel", run: "^TestAttentionOfParts$",
	}, {
		bug: "sequences in parts: the mask of another sequence", how: "rows before a shard are counted as sequences",
		file: "runtime/cpu/model.go",
		old:  "\t\tdrop.BatchOffset /= attr.Parts\n", new: "",
		pkg: "./runtime/cpu", run: attention,
	}, {
		bug: "all rows are rotated by the positions of the first", how: "which are those of one part of a sequence",
		file: "runtime/cpu/model.go",
		old:  "shape.B, shape.T = 1, shape.B*shape.T\n\t}\n\tkernel.RoPE(d.pool, d.result(k, 0), d.arg(k, 0), d.ints(k.Args[1]),",
		new:  "}\n\tkernel.RoPE(d.pool, d.result(k, 0), d.arg(k, 0), d.ints(k.Args[1])[:shape.T],",
		pkg:  "./runtime/cpu", run: "^TestConformance$/^1_thread$/^ops$/^rope$",
	}, {
		bug: "device code: log-sums of a shard are not those of its rows", how: "they lie as if each sequence were a row",
		file: "cuda/kernel/heads.cu",
		old:  "if (length < rows)", new: "if (rows < 0)",
		pkg: "./cuda/kernel", run: "^TestTensorCores$/^attention$/^18$",
	}, {
		bug: "device code: gradients take products of other rows with their gradients", how: "which do not lie like log-sums",
		file: "cuda/kernel/attention.go",
		old:  "some.batch, some.rows = h.batch*h.parts, h.rows/h.parts", new: "some.batch = h.batch",
		pkg: "./cuda/kernel", run: "^TestTensorCores$/^attention_grad$/^19$",
	}, {
		bug: "device code: all rows are rotated by the positions of the first", how: "which are those of one part of a sequence",
		file: "cuda/kernel/model.go",
		old:  "if attr.Rows {", new: "if attr.Rows && s[0] < 0 {",
		pkg: "./cuda/kernel", run: "^TestOps$/^ops$/^rope$",
	}, {
		bug: "attention to sequences in parts is cheap", how: "as if to the keys of a part alone",
		file: "planner/cost/program.go",
		old:  "return max(1, ir.SequenceParts(n.Attr)) * row }", new: "return row }",
		pkg: "./planner/cost", run: "^TestAttentionOfParts$",
	}, {
		bug: "ranks have parts of sequences in other numbers", how: "of a batch that they do not share equally",
		file: "partition/apply.go",
		old:  "if p.SequenceParts > 1 && batch%p.DataParallel() != 0 {", new: "if p.SequenceParts > 1 && batch < 0 {",
		pkg: "./partition", run: "^TestPlansRefused$",
	}, {
		bug: "sequences in parts are sequences", how: "nobody looks how many rows attention joins",
		file: "codegen/sequenceparts.go",
		old:  "if attends && a.Parts != parts {", new: "if attends && a.Parts < 0 {",
		pkg: "./codegen", run: "^TestVerifyRefusesWrongParts$",
	}, {
		bug: "a micro-batch begins within a sequence", how: "nobody looks where rows are cut",
		file: "ir/verifyspec.go",
		old:  "if axis.Chunk%parts != 0 ||", new: "if axis.Chunk < 0 ||",
		pkg: "./codegen", run: "^TestVerifyRefusesWrongParts$",
	}, {
		bug: "the first block hides less than others", how: "the positions that it reads stand between its nodes",
		file: "codegen/shared.go",
		old:  "case n.Op == ir.OpInput:\n\t\t\treturn true", new: "case n.Op == ir.OpInput:\n\t\t\treturn false",
		pkg: "./planner", run: "^TestCostBesideWhatBlocksShare$",
	}, {
		bug: "sequences in parts: work of fewer tokens", how: "rows count as sequences",
		file: "planner/floor.go",
		old:  "mb.Chunk, mb.Size = size*w.rows(), (batch+size-1)/size", new: "mb.Chunk, mb.Size = size, (batch+size-1)/size",
		pkg: "./planner", run: "^TestTrunksTellWhatPartsTake$",
	}, {
		bug: "what parts of sequences hide is not known", how: "they are taken for whole ones",
		file: "planner/pieces.go",
		old:  "\t\t\tif on.ofParts {\n", new: "\t\t\tif on.ofParts && pieces == 0 {\n",
		pkg: "./planner", run: "^TestTrunksTellWhatPartsTake$",
	}, {
		bug: "a certificate has sequences cut that cannot be", how: "nobody looks",
		file: "planner/declared.go",
		old:  "if c.pieces > 0 && g.ofParts != r.ofParts {", new: "if c.pieces < 0 {",
		pkg: "./planner", run: "^TestCertificateOfExchanges$",
	}, {
		bug: "positions are fed for one sequence", how: "and the rest has those of the step before",
		file: "runtime/feed.go",
		old:  "return bytes.Repeat(one, times)", new: "return append(bytes.Clone(one), make([]byte, len(one)*(times-1))...)",
		pkg: ".", run: "^TestSequencePartsParity$",
	}, {
		bug: "sequences in parts: context-parallel ranks take keys for those of the first part", how: "the rows of all parts are read as its rows",
		file: "runtime/cpu/context.go",
		old:  "Row: row*s.Local[1] + r.Row - s.Offset[1]", new: "Row: r.Row - s.Offset[1]",
		pkg: "./runtime/cpu", run: "^TestConformance$/^1_thread$/^ops$/^attention_kv$",
	}, {
		bug: "device code: queries of all parts of a shared sequence are at positions of the first", how: "and see its keys alone",
		file: "cuda/kernel/heads.cu",
		old:  "return row / length * whole + unfolded(", new: "return unfolded(",
		pkg: "./cuda/kernel", run: "^TestTensorCores$/^attention_kv$",
	}, {
		bug: "device code: keys of all parts of a shared sequence are those of the first", how: "at the same place of it",
		file: "cuda/kernel/heads.cu",
		old:  "return position / whole * whole + folded(", new: "return folded(",
		pkg: "./cuda/kernel", run: "^TestTensorCores$/^attention_kv_grad$",
	}, {
		bug: "planner: parts that context-parallel ranks share unevenly", how: "which start at no aligned address",
		file: "planner/pieces.go",
		old:  "tokens/(n*cp) >= tp && codegen.EvenContext(tokens/n, cp)", new: "tokens/(n*cp) >= tp",
		pkg: "./planner", run: "^TestPartsOfSharedSequences$",
	}, {
		bug: "planner: programs of ranks that share sequences unevenly are taken from those that do", how: "other products are made in parts",
		file: "planner/blueprint.go",
		old:  "cp > 2 && b.even(p, 2) != b.even(p, cp)", new: "cp == 0",
		pkg: "./planner", run: "^TestPartsOfSharedSequences$",
	}, {
		bug: "proof: the rows of shared sequences may be any number", how: "attention to one part passes for attention to all",
		file: "codegen/sequenceparts.go",
		old:  "if attends && a.Parts != parts {", new: "if attends && a.Fold == 0 && op != ir.OpAttentionKV && a.Parts != parts {",
		pkg: "./codegen", run: "^TestVerifyRefusesWrongParts$",
	}}
}
