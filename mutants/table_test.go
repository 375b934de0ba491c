package mutants

import "slices"

// mutants lists all planted bugs, by where they are planted.
func mutants() []mutant {
	return slices.Concat(inTheModel(), inLlama(), inThePartition(), inTheRuntime(), inTheKernels(), inTheLoop(), inThePrecision(), inTheReproducible(), inTheStreams(), inTheExchange(), inContext(), inTheMemory(), inTheAnswers(), inGroupedHeads(), inTheCluster(), inTheCompiler(), inTheFinals(), inTheFootprint(), inTheCertificate(), inThePrograms(), inThePools(), inRankOrders(), inReplicatedModules(), inBatchParallel(), inGrids(), inTheBounds(), inTheDeviceCode(), inTheDevice(), inTheProcesses(), inCheckpoints(), inSlowRanks(), inViews(), inAdapters(), inLossSlices(), inPieces(), inSequenceParts(), inPosted(), inBeside(), inShortMemory(), inSums(), inFiles())
}

// inReplicatedModules has those of weights that all tensor-parallel ranks hold.
func inReplicatedModules() []mutant {
	const modules = "^TestReplicatedModules$"
	return []mutant{{
		bug: "every rank does all heads", how: "attention does not exchange tokens for them",
		file: "partition/rulecost.go",
		old:  "return from == along && to.Kind == ir.Shard && to.Dim > 1", new: "return false",
		pkg: "./partition", run: modules,
	}, {
		bug: "the loss gathers logits", how: "it does not take the targets of its tokens",
		file: "partition/rulecost.go",
		old:  "case ir.OpRowPick, ir.OpNLL:", new: "case ir.OpNLL:",
		pkg: "./partition", run: modules,
	}, {
		bug: "gradients are placed by how much is recomputed", how: "a sum over the sequence costs what its operands move",
		file: "partition/rulecost.go",
		old:  "case pr.sumsStream(t):", new: "case t.n == nil:",
		pkg: "./partition", run: modules,
	}, {
		bug: "a faster plan is missed", how: "the search replicates no module",
		file: "planner/grid.go",
		old:  "range s.replications(o) {", new: "range s.replications(o)[:0] {",
		pkg: "./planner", run: "^TestReplicatedSearchIsExact$",
	}}
}

// inBatchParallel has those of tensor-parallel ranks that share the batch, and of what ZeRO shards over them.
func inBatchParallel() []mutant {
	return []mutant{{
		bug: "tensor-parallel ranks share the sequence where they should share the batch", how: "a dimension too far",
		file: "partition/plan.go",
		old:  "case p.BatchParallel:\n\t\treturn 0", new: "case p.BatchParallel:\n\t\treturn 1",
		pkg: "./partition", run: "^TestBatchParallel$",
	}, {
		bug: "a parameter that is sharded at rest is used in parts", how: "over tensor-parallel ranks",
		file: "partition/rulecost.go",
		old:  "atRest := v.Def.Op == ir.OpParam && known.spread &&", new: "atRest := v.Def.Op == ir.OpInput && known.spread &&",
		pkg: "./partition", run: "^TestSpread$",
	}, {
		bug: "gradients that ZeRO shards over tensor-parallel ranks add up whole", how: "of stage 2",
		file: "partition/propagate.go",
		old:  "a.Name == AxisTP && pr.of(r).spread", new: "a.Name == AxisTP && isGrad && pr.plan.ZeRO > 3",
		pkg: "./partition", run: "^TestSpread$",
	}, {
		bug: "weights that are gathered over two axes wait for the first of them", how: "in the order of the update",
		file: "codegen/overlap.go",
		old:  "return !b.next[n.ID()] && !slices.ContainsFunc(readers,", new: "return len(readers) < 0 && !slices.ContainsFunc(readers,",
		pkg: "./planner", run: "^TestCostIsSimulation$/^seed_61$",
	}, {
		bug: "a faster plan is missed", how: "no ranks share the batch and the vocabulary",
		file: "planner/rankorder.go",
		old:  "s.batched(d)", new: "s.batched(d)[:0]",
		pkg: "./planner", run: "^TestBatchParallelSearchIsExact$",
	}, {
		bug: "a floor forgets what ZeRO shards", how: "over tensor-parallel ranks",
		file: "planner/relax.go",
		old:  "t := trunk.apart(o.zero, o.sharers(ranks))", new: "t := trunk.apart(o.zero, ranks)",
		pkg: "./planner", run: "^TestFloorsOfUpdates$",
	}}
}

// inTheModel has the bugs of the graph that all ranks share: trace, autodiff,
// the model, and the interpreter that defines the ops.
func inTheModel() []mutant {
	const oracle = "^TestOracleLossAndGradients$"
	return []mutant{{
		bug: "non-causal mask", how: "in the definition of attention",
		file: "ir/interp/attention.go",
		old:  "i, attr)] = sum\n\t\t\t\t\tfor j := range i + 1 {",
		new:  "i, attr)] = sum\n\t\t\t\t\tfor j := range length {",
		pkg:  "./ir/interp", run: "^TestAttentionIsCausal$",
	}, {
		bug: "tied table's gradient missing one use", how: "autodiff keeps the last",
		file: "ir/autodiff/grad.go",
		old:  "b.grads[v.ID] = append(sofar, d)", new: "b.grads[v.ID] = []*ir.Value{d}",
		pkg: "./models/gpt", run: oracle,
	}, {
		bug: "two backward outputs swapped", how: "weight and bias of layer norm",
		file: "ir/autodiff/rules.go",
		old:  "b.give(a, n.Results[i])", new: "b.give(a, n.Results[(len(n.Results)-i)%len(n.Results)])",
		pkg: "./models/gpt", run: oracle,
	}, {
		bug: "loss scale different", how: "on all ranks, in the backward pass",
		file: "ir/autodiff/grad.go",
		old:  "ir.ConstAttr{Value: 1}", new: "ir.ConstAttr{Value: 2}",
		pkg: "./models/gpt", run: oracle,
	}, {
		bug: "wrong power on all ranks", how: "bias correction in the definition of AdamW",
		file: "ir/interp/elementwise.go",
		old:  "math.Pow(a.Beta2, t)", new: "math.Pow(a.Beta2, t+1)",
		pkg: "./models/gpt", run: "^TestOracleTraining$",
	}, {
		bug: "optimizer holding stale weights", how: "the new weight is nobody's next",
		file: "trace/optimizer.go",
		old:  "t.Update(updated, next[0])\n", new: "",
		pkg: "./models/gpt", run: "^TestOracleTraining$",
	}, {
		bug: "optimizer holding stale weights", how: "the second moment is forgotten",
		file: "trace/optimizer.go",
		old:  "t.Update(v, next[2])\n", new: "",
		pkg: "./models/gpt", run: "^TestOracleTraining$",
	}, {
		bug:  "weight decay on biases and norms",
		file: "trace/optimizer.go",
		old:  "if !declared.Decay {", new: "if !declared.Decay && declared.State {",
		pkg: "./models/gpt", run: "^TestOracleTraining$",
	}, {
		bug:  "dropout in evaluation",
		file: "models/gpt/step.go",
		old:  "cfg.Dropout, cfg.LoRADropout = 0, 0\n\treturn fullSequence(", new: "return fullSequence(",
		pkg: "./models/gpt", run: "^TestDropoutSites$",
	}}
}

// inThePartition has the bugs of cutting the graph, and of the order and memory
// that programs are given.
func inThePartition() []mutant {
	const sound = "^TestCheckAcceptsEveryProgram$"
	const shapes = "^TestShapes$"
	skip := func(when string) string {
		return "if s.Op == ir.OpAllReduce && " + when + " {\n\t\t\tm.Spec = s.Spec\n\t\t\tcontinue\n\t\t}\n\t\t"
	}
	const insert = "m = pr.comm(s.Op, m, s.Spec, stage, phase, s.Attr).Results[0]"
	return []mutant{{
		bug: "dropped all_reduce with the data flow kept", how: "forward",
		file: "partition/reshard.go", old: insert, new: skip("phase == ir.Forward") + insert,
		pkg: "./codegen", run: sound,
	}, {
		bug:  "missing backward reduce",
		file: "partition/reshard.go", old: insert, new: skip("phase == ir.Backward") + insert,
		pkg: "./codegen", run: sound,
	}, {
		bug: "missing backward reduce", how: "of gradients over data-parallel ranks",
		file: "partition/reshard.go", old: insert, new: skip("s.Attr.Axis == AxisDP") + insert,
		pkg: "./codegen", run: sound,
	}, {
		bug: "all_reduce and all_gather swapped", how: "a sum is gathered",
		file: "partition/reshard.go",
		old:  "add(i, ir.OpAllReduce, t, ir.CommAttr{Reduce: f.Reduce})", new: "add(i, ir.OpAllGather, t, ir.CommAttr{})",
		pkg: "./codegen", run: sound,
	}, {
		bug: "all_reduce and all_gather swapped", how: "parts are summed",
		file: "partition/reshard.go",
		old:  "add(i, ir.OpAllGather, t, ir.CommAttr{Dim: int(f.Dim)})", new: "add(i, ir.OpAllReduce, t, ir.CommAttr{})",
		pkg: "./partition", run: "^TestEachStepIsItsCollective$",
	}, {
		bug:  "clip by each shard's own norm",
		file: "ir/signature.go",
		old:  "} else if inArgs {\n\t\t\tresults[i] = PartialOf", new: "} else if inArgs && s.Op != OpSumSquares {\n\t\t\tresults[i] = PartialOf",
		pkg: "./ir/interp", run: "^TestEveryRuleIsTrue$",
	}, {
		bug:  "clip by each stage's own norm",
		file: "partition/stage.go",
		old:  "for _, t := range stages {\n\t\tv := c.term", new: "for _, t := range stages {\n\t\tif len(byStage) > 1 && n.Op == ir.OpAddN && t != s && strings.HasPrefix(n.Name, \"grad_norm\") {\n\t\t\tcontinue\n\t\t}\n\t\tv := c.term",
		pkg: "./codegen", run: sound,
	}, {
		bug: "tied table's gradient missing one use", how: "each stage keeps its own",
		file: "partition/stage.go",
		old:  "for _, t := range stages {\n\t\tv := c.term", new: "for _, t := range stages {\n\t\tif t != s && strings.HasSuffix(n.Name, \"@grad\") {\n\t\t\tcontinue\n\t\t}\n\t\tv := c.term",
		pkg: "./codegen", run: sound,
	}, {
		bug: "tied table's gradient missing one use", how: "one accumulator, and the second overwrites",
		file: "codegen/layout.go",
		old:  "first[id] {\n\t\t\tb.modes[v] = Always", new: "first[id] {\n\t\t\tb.modes[v] = AfterFirst",
		pkg: "./codegen", run: sound,
	}, {
		bug:  "tied table counted twice in the norm",
		file: "partition/stage.go",
		old:  "byStage[t] = append(byStage[t], a)",
		new: `byStage[t] = append(byStage[t], a)
		if name, _, _ := strings.Cut(a.Def.Name, "/"); a.Def.Op == ir.OpSumSquares {
			for _, again := range c.holders[c.params[name].ID()][1:] {
				byStage[again] = append(byStage[again], a)
				if !slices.Contains(stages, again) {
					stages = append(stages, again)
				}
			}
		}`,
		pkg: "./codegen", run: sound,
	}, {
		bug: "clip by each stage's own norm", how: "of all its terms but the first",
		file: "partition/stage.go",
		old:  "node.Args = args", new: "node.Args = args[1:]",
		pkg: "./codegen", run: sound,
	}, {
		bug: "epsilon changed on one rank", how: "of layer norm, on those of the second stage",
		file: "partition/stage.go",
		old:  "m.Stage, m.Name = s, c.name(n, s)\n",
		new: `m.Stage, m.Name = s, c.name(n, s)
	if a, ok := m.Attr.(ir.LayerNormAttr); ok && s == 1 {
		a.Eps *= 10
		m.Attr = a
	}
`,
		pkg: "./codegen", run: sound,
	}, {
		bug: "two backward outputs swapped", how: "by their buffers",
		file: "codegen/layout.go",
		old:  "for i, r := range n.Results {\n\t\tin.Results",
		new:  "for i, r := range n.Results {\n\t\tif n.Op == ir.OpLayerNormGrad && i > 0 {\n\t\t\tr = n.Results[len(n.Results)-i]\n\t\t}\n\t\tin.Results",
		pkg:  "./codegen", run: sound,
	}, {
		bug:  "wrong p2p source",
		file: "partition/stage.go",
		old:  "Op: ir.OpRecv, Attr: ir.P2PAttr{Stage: from}", new: "Op: ir.OpRecv, Attr: ir.P2PAttr{Stage: to}",
		pkg: "./codegen", run: sound,
	}, {
		bug:  "wrong p2p destination",
		file: "partition/stage.go",
		old:  "Op: ir.OpSend, Attr: ir.P2PAttr{Stage: to}", new: "Op: ir.OpSend, Attr: ir.P2PAttr{Stage: from}",
		pkg: "./codegen", run: sound,
	}, {
		bug: "wrong p2p destination", how: "always the first rank of the stage",
		file: "codegen/program.go",
		old:  "(ir.P2PAttr).Stage, s.Device)", new: "(ir.P2PAttr).Stage, 0)",
		pkg: "./codegen", run: sound,
	}, {
		bug: "bias added on every rank of a row-parallel matmul", how: "add is said to be linear in one operand",
		file: "ir/op.go",
		old:  `sig: "a[l* s*] b[s*] -> y[l* s*]", class: Compute, linear: all`, new: `sig: "a[l* s*] b[s*] -> y[l* s*]", class: Compute, linear: 1`,
		pkg: "./ir/interp", run: "^TestEveryRuleIsTrue$",
	}, {
		bug:  "uneven last shard dropped",
		file: "ir/mesh.go",
		old:  "return Span{i*q + min(i, r), q + b2i(i < r)}", new: "return Span{i * q, q + 0*r}",
		pkg: "./ir", run: "^TestLocalTiles$",
	}, {
		bug: "uneven last shard dropped", how: "by a run of the model",
		file: "ir/mesh.go",
		old:  "return Span{i*q + min(i, r), q + b2i(i < r)}", new: "return Span{i * q, q + 0*r}",
		pkg: "./runtime", run: shapes,
	}, {
		bug:  "micro-batch remainder dropped",
		file: "partition/plan.go",
		old:  "return (sequences(mesh, batch, at) + p.MicroBatch - 1) / p.MicroBatch", new: "return max(1, sequences(mesh, batch, at)/p.MicroBatch)",
		pkg: "./codegen", run: sound,
	}, {
		bug: "micro-batch remainder dropped", how: "the last one repeats rows",
		file: "ir/mesh.go",
		old:  "off := min(i*a.Chunk, size)", new: "off := max(0, min(i*a.Chunk, size-a.Chunk))",
		pkg: "./ir", run: "^TestCutIsUneven$",
	}, {
		bug: "norms are kept where they are computed again", how: "and only the activation function is not",
		file: "partition/recompute.go",
		old:  "case ir.OpLayerNorm, ir.OpRMSNorm, ir.OpGELU, ir.OpSwiGLU:", new: "case ir.OpGELU, ir.OpSwiGLU:",
		pkg: "./codegen", run: "^TestRecomputeShrinksSlots$",
	}, {
		bug:  "recompute draws another mask",
		file: "partition/recompute.go",
		old:  `c.Name, c.Phase = n.Name+"@re", ir.Backward`,
		new: `c.Name, c.Phase = n.Name+"@re", ir.Backward
		if d, ok := c.Attr.(ir.DropoutAttr); ok {
			d.Key = c.Name
			c.Attr = d
		}`,
		pkg: "./runtime", run: shapes,
	}, {
		bug: "gradient reduce launched before the last micro-batch's backward", how: "it stands in the backward body",
		file: "codegen/layout.go",
		old:  "body := &b.Bodies[b.bodyOf(in.Node)]",
		new:  "n := in.Node\n\tphase := b.bodyOf(n)\n\tif n.Op == ir.OpAllReduce && n.Args[0].Def.Op == ir.OpAccumulate {\n\t\tphase = ir.Backward\n\t}\n\tbody := &b.Bodies[phase]",
		pkg:  "./codegen", run: sound,
	}, {
		bug: "gradient reduce launched before the last micro-batch's backward", how: "the update is not last",
		file: "codegen/order.go",
		old:  "return append(tasks, Task{Phase: ir.Update})",
		new:  "tasks = append(tasks, Task{Phase: ir.Update})\n\tend := len(tasks)\n\ttasks[end-1], tasks[end-2] = tasks[end-2], tasks[end-1]\n\treturn tasks",
		pkg:  "./codegen", run: sound,
	}, {
		bug: "gradient of a weight before the gradient it is made of", how: "a zero-bubble schedule runs ahead",
		file: "codegen/order.go",
		old:  "if mb := i - lag; split", new: "if mb := i + 1 - lag; split",
		pkg: "./codegen", run: "^TestPipelinesAreSound$",
	}, {
		bug: "slot reused while its weight gradients are to come", how: "as many slots as under 1f1b",
		file: "codegen/order.go",
		old:  "+1+WeightLag(p.Schedule, position))}", new: "+1)}",
		pkg: "./codegen", run: "^TestPipelinesAreSound$",
	}, {
		bug: "slot reused while its micro-batch is in flight", how: "a forward pass goes before the first backward pass of a chunk",
		file: "codegen/order.go",
		old:  "(k-1-c)*n + 1 // of all", new: "(k-1-c)*n // of all",
		pkg: "./codegen", run: "^TestOrders$",
	}, {
		bug: "interleaving deadlocks", how: "a number of micro-batches that is no multiple of the ranks",
		file: "codegen/order.go",
		old:  "rounded := (m + n - 1) / n * n", new: "rounded := m",
		pkg: "./codegen", run: "^TestPipelinesAreSound$",
	}, {
		bug: "wrong chunk", how: "a gathered weight belongs to the first chunk that reads it",
		file: "partition/reshard.go",
		old:  "spec: to, stage: stage}", new: "spec: to}\n\tstage, _ = pr.plan.Position(stage)",
		pkg: "./codegen", run: "^TestPipelinesAreSound$",
	}, {
		bug: "backward pass split wrongly", how: "a gradient that another stage waits for is put off",
		file: "partition/weightgrad.go",
		old:  "if of != many && !passed[n.ID()] && !waited", new: "if n.Op == ir.OpSend || of != many && !waited[n.ID()] || passed == nil && !waited",
		pkg: "./codegen", run: "^TestPipelinesAreSound$",
	}, {
		bug: "backward pass split wrongly", how: "what a kernel that stays reads is put off",
		file: "partition/weightgrad.go",
		old:  "&& !waited[n.ID()] && !handsOn {", new: "&& (!waited[n.ID()] || true) && !handsOn {",
		pkg: "./partition", run: "^TestWeightGradsBehindACut$",
	}, {
		bug: "optimizer holding stale weights", how: "the new weight has a place of its own",
		file: "codegen/layout.go",
		old:  "i < 0 || n.Args[i] != u.Param {", new: "i < 0 || n.Args[i] != u.Param || n.Op == ir.OpAdamW && i == 0 {",
		pkg: "./codegen", run: sound,
	}}
}

// inTheRuntime has the bugs of executor and CPU backend, which no check of the
// program can see.
func inTheRuntime() []mutant {
	const shapes = "^TestShapes$"
	const interp = "^TestInterp$"
	return []mutant{{
		bug: "gradients synced on the wrong micro-step", how: "the first micro-batch is overwritten",
		file: "runtime/action.go",
		old:  "codegen.AfterFirst && t.MicroBatch > 0", new: "codegen.AfterFirst && t.MicroBatch > 1",
		pkg: "./runtime", run: shapes,
	}, {
		bug: "gradients synced on the wrong micro-step", how: "the sum goes on in the next step",
		file: "runtime/action.go",
		old:  "codegen.AfterFirst && t.MicroBatch > 0", new: "codegen.AfterFirst",
		pkg: "./runtime", run: interp,
	}, {
		bug:  "same rows on every replica",
		file: "runtime/action.go",
		old:  "a.from = int64(slab.Offset[0]) * row", new: "a.from = 0 * row",
		pkg: "./runtime", run: shapes,
	}, {
		bug: "wrong p2p destination", how: "the slot of another micro-batch",
		file: "runtime/action.go",
		old:  "Offset(at.buffer, t.MicroBatch)", new: "Offset(at.buffer, 0)",
		pkg: "./runtime", run: shapes,
	}, {
		bug: "wrong p2p destination", how: "one element further",
		file: "runtime/cpu/device.go",
		old:  "peer[t.Remote/4:][:len(src)], src)", new: "peer[t.Remote/4+1:][:len(src)], src)",
		pkg: "./runtime", run: shapes,
	}, {
		bug: "wrong p2p source", how: "the bytes are the neighbour's",
		file: "runtime/cpu/device.go",
		old:  "src := d.words(t.Local)",
		new:  "src := d.words(t.Local)\n\tif at := t.Local.Offset / 4; int(at)+len(src) <= len(d.backend.devices[d.rank^1].arenas[0]) {\n\t\tsrc = d.backend.devices[d.rank^1].arenas[0][at:][:len(src)]\n\t}",
		pkg:  "./runtime", run: shapes,
	}, {
		bug:  "same initial weights on every shard",
		file: "runtime/param.go",
		old:  "dst[i:i+n], uint64(s.Slab.GlobalIndex(at+i))", new: "dst[i:i+n], uint64(at+i)",
		pkg: "./runtime", run: shapes,
	}, {
		bug: "dropped all_reduce with the data flow kept", how: "the ranks meet and add nothing",
		file: "runtime/cpu/exchange.go",
		old:  "kernel.Combine(d.pool, c.Attr.Reduce == ir.Max, d.outs, d.ins)", new: "for i := range d.ins {\n\t\t\tcopy(d.outs[i], d.ins[i])\n\t\t}",
		pkg: "./runtime", run: shapes,
	}, {
		bug: "loss scale different", how: "gradients are averaged over replicas, not added",
		file: "runtime/cpu/exchange.go",
		old:  "d.outs, d.ins)\n\t\treturn nil", new: "d.outs, d.ins)\n\t\tfor _, x := range d.outs {\n\t\t\tkernel.Scale(d.pool, x, x, 1/float32(len(c.Members)))\n\t\t}\n\t\treturn nil",
		pkg: "./runtime", run: shapes,
	}, {
		bug: "loss scale different", how: "on one rank",
		file: "runtime/cpu/launch.go",
		old:  "d.arg(k, 0), d.arg(k, 1)[0])\n\treturn nil", new: "d.arg(k, 0), d.arg(k, 1)[0]*float32(1+d.rank%2))\n\treturn nil",
		pkg: "./runtime", run: shapes,
	}, {
		bug: "loss scale different", how: "on all ranks",
		file: "runtime/cpu/launch.go",
		old:  "d.arg(k, 0), d.arg(k, 1)[0])\n\treturn nil", new: "d.arg(k, 0), 2*d.arg(k, 1)[0])\n\treturn nil",
		pkg: "./runtime", run: interp,
	}, {
		bug: "epsilon changed on one rank", how: "of the clip",
		file: "runtime/cpu/launch.go",
		old:  "MaxNorm/(norm+1e-6)", new: "MaxNorm/(norm+1e-6*float64(1+d.rank%2))",
		pkg: "./runtime", run: "^TestClip$",
	}, {
		bug: "epsilon changed on one rank", how: "of AdamW",
		file: "runtime/cpu/launch.go",
		old:  "Eps: float32(a.Eps)", new: "Eps: float32(a.Eps) * float32(1+d.rank%2)",
		pkg: "./runtime", run: shapes,
	}, {
		bug: "epsilon changed on one rank", how: "of layer norm",
		file: "runtime/cpu/model.go",
		old:  "b, float32(attr.Eps))", new: "b, float32(attr.Eps)*float32(1+d.rank%2))",
		pkg: "./runtime", run: shapes,
	}, {
		bug: "epsilon changed on all ranks", how: "of the clip",
		file: "runtime/cpu/launch.go",
		old:  "MaxNorm/(norm+1e-6)", new: "MaxNorm/(norm+1e-3)",
		pkg: "./runtime/cpu", run: "^TestConformance$/^1_thread$/^ops$/^clip_scale$",
	}, {
		bug:  "gradients are not clipped",
		file: "runtime/cpu/launch.go",
		old:  "GradScale:       d.arg(k, 4)[0],", new: "GradScale:       1,",
		pkg: "./runtime/cpu", run: "^TestConformance$/^1_thread$/^ops$/^adamw$",
	}, {
		bug: "wrong power on all ranks", how: "bias correction of AdamW",
		file: "runtime/cpu/launch.go",
		old:  "math.Pow(a.Beta2, step)", new: "math.Pow(a.Beta2, step+1)",
		pkg: "./runtime", run: interp,
	}, {
		bug: "optimizer holding stale weights", how: "it updates a copy",
		file: "runtime/cpu/launch.go",
		old:  "kernel.AdamW(d.pool, d.result(k, 0), ", new: "kernel.AdamW(d.pool, append([]float32(nil), d.result(k, 0)...), ",
		pkg: "./runtime", run: interp,
	}, {
		bug:  "bias added on every rank of a row-parallel matmul",
		file: "runtime/cpu/launch.go",
		old:  "y := d.words(k.Results[0]); k.Position > 0 {", new: "y := d.words(k.Results[0]); k.Position < 0 {",
		pkg: "./runtime", run: shapes,
	}, {
		bug: "same dropout mask on every replica", how: "of activations",
		file: "runtime/cpu/model.go",
		old:  "kernel.Slab(k.Results[0].Slab)", new: "kernel.Slab(ir.Whole(k.Results[0].Slab.Local))",
		pkg: "./runtime", run: shapes,
	}, {
		bug: "same dropout mask on every replica", how: "of attention",
		file: "runtime/cpu/model.go",
		old:  "d.maskKey(k), s.Offset[0], s.Offset[3], s.Global[3]", new: "d.maskKey(k), 0, s.Offset[3], s.Global[3]",
		pkg: "./runtime", run: shapes,
	}, {
		bug:  "same dropout mask for every shard of heads",
		file: "runtime/cpu/model.go",
		old:  "d.maskKey(k), s.Offset[0], s.Offset[3], s.Global[3]", new: "d.maskKey(k), s.Offset[0], 0, s.Global[3]",
		pkg: "./runtime", run: shapes,
	}, {
		bug:  "same dropout mask in every step",
		file: "runtime/cpu/model.go",
		old:  "Step: uint32(step)}", new: "Step: uint32(0 * step)}",
		pkg: "./runtime", run: interp,
	}, {
		bug:  "shard of the vocabulary counted from zero",
		file: "runtime/cpu/model.go",
		old:  "d.arg(k, 0), targets, lastOffset(x))", new: "d.arg(k, 0), targets, 0*lastOffset(x))",
		pkg: "./runtime", run: shapes,
	}}
}

// inTheKernels has the bugs of the CPU's kernels. What they share is in Go;
// portable and assembly loops are held against each other by tests of their own.
func inTheKernels() []mutant {
	const kernel = "./runtime/cpu/kernel"
	const causal = "seen := x.i + r - j + 1 // how many keys the first of the four queries sees"
	return []mutant{{
		bug: "non-causal mask", how: "forward",
		file: "runtime/cpu/kernel/attention.go", old: causal, new: "seen := m",
		pkg: ".", run: "^TestCausality$",
	}, {
		bug: "non-causal mask", how: "added to the scores as 0 and 1",
		file: "runtime/cpu/kernel/attention.go", old: causal,
		new: "seen := m\n\t\tfor q := range scoreQuad {\n\t\t\tfor k := range max(0, min(m, x.i+r+q-j+1)) {\n\t\t\t\trows[q*ld+k]++\n\t\t\t}\n\t\t}",
		pkg: ".", run: "^TestCausality$",
	}, {
		bug: "non-causal mask", how: "forward, against the definition",
		file: "runtime/cpu/kernel/attention.go", old: causal, new: "seen := m",
		pkg: kernel, run: "^TestAttention$",
	}, {
		bug: "non-causal mask", how: "backward",
		file: "runtime/cpu/kernel/attention_grad.go",
		old:  "seen := x.i + r - j + 1\n", new: "seen := m\n",
		pkg: kernel, run: "^TestAttention$",
	}, {
		bug: "non-causal mask", how: "a block of scores on the diagonal is taken to be beyond it",
		file: "runtime/cpu/kernel/attention.go",
		old:  "for i := max(0, j-offset) / rows * rows;", new: "for i := max(0, j+width-offset) / rows * rows;",
		pkg: kernel, run: "^TestAttention$",
	}, {
		bug: "attention on tiles", how: "columns of a right-hand matrix follow on the steps that count",
		file: "runtime/cpu/kernel/attention_tiles.go",
		old:  "s.values[j/tileLines*tileFloat:], (s.positions-seen)*tileFloat,", new: "s.values[j/tileLines*tileFloat:], 0,",
		pkg: kernel, run: "^TestAttention$",
	}, {
		bug: "attention on tiles", how: "what some queries see is added for those after, too, again",
		file: "runtime/cpu/kernel/attention_tiles.go",
		old:  "from = seen", new: "from = 0",
		pkg: kernel, run: "^TestAttention$",
	}, {
		bug: "attention on tiles", how: "gradients of keys in the order of positions",
		file: "runtime/cpu/kernel/attention_tiles.go",
		old:  "to.data[(run.Row+i+r)*to.rs:]", new: "to.data[(run.Pos+i+r)*to.rs:]",
		pkg: kernel, run: "^TestAttentionOfRuns$",
	}, {
		bug: "dropout of rows of scores", how: "each from the start of a block of random numbers on",
		file: "runtime/cpu/kernel/score_rows.go",
		old:  "skip := int(start & 3)", new: "skip := 0 * int(start&3)",
		pkg: kernel, run: "^TestScoreRows$",
	}, {
		bug: "blocked product", how: "a block of columns is taken to be packed already",
		file: "runtime/cpu/kernel/matmul.go",
		old:  "p.task.product.serial += uint64(parts * t.across)", new: "p.task.product.serial += 0",
		pkg: kernel, run: "^TestMatMul$",
	}, {
		bug: "product in halves", how: "the second is not added",
		file: "runtime/cpu/kernel/matmul.go",
		old:  "p.binary(p.isa.add, c, c, second, grainLight)", new: "",
		pkg: kernel, run: "^TestMatMul$",
	}, {
		bug: "product in halves", how: "terms of the second take the place of those before",
		file: "runtime/cpu/kernel/matmul.go",
		old:  "min(kc, left), q > 0}", new: "min(kc, left), false}",
		pkg: kernel, run: "^TestMatMul$",
	}, {
		bug: "product in halves", how: "the first is the shorter where half of an odd number is whole steps",
		file: "runtime/cpu/kernel/matmul.go",
		old:  "first = ((k+1)/2 + tileDepth", new: "first = (k/2 + tileDepth",
		pkg: kernel, run: "^TestMatMul$",
	}, {
		bug: "packed rows", how: "rows after the first few are packed over them",
		file: "runtime/cpu/kernel/matmul.go",
		old:  "dst[j*k+q*width:]", new: "dst[j*k:]",
		pkg: kernel, run: "^TestMatMul$",
	}, {
		bug: "exponential", how: "a coefficient has lost its last digits",
		file: "runtime/cpu/kernel/math_generic.go",
		old:  "4.1665795894e-2, 1.6666665459e-1, 0.5", new: "4.16e-2, 1.6666665459e-1, 0.5",
		pkg: kernel, run: "^TestMathBounds$",
	}, {
		bug: "derivative of GELU by tanh", how: "the cube of a number times what is almost zero",
		file: "runtime/cpu/kernel/math_generic.go",
		old:  "v = min(max(v, -geluMax), geluMax)", new: "v = min(v, geluMax)",
		pkg: kernel, run: "^TestDerivativeBounds$",
	}, {
		bug: "scratch memory", how: "RMS norm's bias of zeros is what was there",
		file: "runtime/cpu/kernel/layernorm.go",
		old:  "	clear(p.partial)\n", new: "",
		pkg: kernel, run: "^TestRMSNorm$",
	}, {
		bug: "product on tiles", how: "a slice of terms takes the place of those before",
		file: "runtime/cpu/kernel/tiles.go",
		old:  "sums, ld, q > 0, next", new: "sums, ld, false, next",
		pkg: kernel, run: "^TestMatMul$",
	}, {
		bug: "product on tiles", how: "the terms beyond a row's end are those of the block before",
		file: "runtime/cpu/kernel/tiles.go",
		old:  "		if !whole {\n			clear(buf)\n		}", new: "",
		pkg: kernel, run: "^TestMatMul$",
	}, {
		bug: "non-causal mask", how: "decoding looks at positions to come",
		file: "runtime/cpu/kernel/decode.go",
		old:  "w.scratch(t.pos + 1)", new: "w.scratch(t.T)",
		pkg: kernel, run: "^TestAttentionDecode$",
	}, {
		bug: "two backward outputs swapped", how: "gradients of queries and keys",
		file: "runtime/cpu/kernel/attention_grad.go",
		old:  "dq: packed{dqkv, shape.T, parts, shape.First}, dk: packed{dqkv, shape.T, parts, parts - 2}", new: "dq: packed{dqkv, shape.T, parts, parts - 2}, dk: packed{dqkv, shape.T, parts, shape.First}",
		pkg: kernel, run: "^TestAttention$",
	}, {
		bug: "two backward outputs swapped", how: "gradients of keys and values",
		file: "runtime/cpu/kernel/attention_grad.go",
		old:  "s.dk, s.dv = t.head", new: "s.dv, s.dk = t.head",
		pkg: kernel, run: "^TestAttention$",
	}, {
		bug: "wrong power on all ranks", how: "variance of layer norm",
		file: "runtime/cpu/kernel/layernorm.go",
		old:  "1 / math.Sqrt(float64(variance+t.eps))", new: "1 / math.Pow(float64(variance+t.eps), 1)",
		pkg: kernel, run: "^TestLayerNorm$",
	}, {
		bug: "wrong power on all ranks", how: "width of a head",
		file: "runtime/cpu/kernel/attention.go",
		old:  "scale := float32(1 / math.Sqrt(float64(t.D)))", new: "scale := float32(1 / float64(t.D))",
		pkg: kernel, run: "^TestAttention$",
	}, {
		bug: "epsilon changed on all ranks", how: "AdamW's under the square root, in portable Go",
		file: "runtime/cpu/kernel/vector_generic.go",
		old:  "*c[rootBias]+c[epsilon])", new: "*c[rootBias]+c[epsilon]*c[rootBias])",
		pkg: kernel, run: "^TestAdamW$",
	}, {
		bug: "weight decay", how: "scaled by the bias correction",
		file: "runtime/cpu/kernel/adamw.go",
		old:  "1 - float64(args.LR)*float64(args.WeightDecay)", new: "1 - float64(args.LR)/float64(args.BiasCorrection1)*float64(args.WeightDecay)",
		pkg: kernel, run: "^TestAdamW$",
	}, {
		bug: "what AdamW adds to a moment is the complement of a rounded decay", how: "of the second",
		file: "runtime/cpu/kernel/adamw.go",
		old:  "float32(1 - args.Beta2)", new: "1 - float32(args.Beta2)",
		pkg: "./runtime/cpu", run: "^TestConformance$/^1_thread$/^first_moments$",
	}, {
		bug:  "embedding gradient of repeated ids lost",
		file: "runtime/cpu/kernel/embedding.go",
		old:  "w.isa.add(dst, dst, t.dy[r*t.cols+lo:r*t.cols+hi])", new: "copy(dst, t.dy[r*t.cols+lo:r*t.cols+hi])",
		pkg: kernel, run: "^TestEmbedding$",
	}, {
		bug: "same dropout mask on every replica", how: "the slab's offset is ignored",
		file: "runtime/cpu/kernel/dropout.go",
		old:  "t.base += uint64(s.Offset[d]) * stride\n", new: "",
		pkg: kernel, run: "^TestDropout$",
	}}
}

// inTheLoop has the bugs of training: data, learning rate, loss, evaluation and
// checkpoints.
func inTheLoop() []mutant {
	const resume = "^TestResumeIsExact$"
	const graph = "^TestStepIsTheGraph$"
	return []mutant{{
		bug: "a resumed run predicts too early an end", how: "the steps before it count for its pace",
		file: "cmd/autopar/console.go",
		old:  "b.Set(n - b.from)", new: "b.Set(n)",
		pkg: "./cmd/autopar", run: "^TestBarOfARun$",
	}, {
		bug: "a resumed run predicts too early an end", how: "it does not say where it begins",
		file: "train/run.go",
		old:  "if it == first {", new: "if it < first {",
		pkg: "./train", run: "^TestInterrupt$",
	}, {
		bug: "TensorBoard refuses the events", how: "checksums are not masked",
		file: "train/tensorboard.go",
		old:  "return (c>>15 | c<<17) + 0xa282ead8", new: "return c",
		pkg: "./train", run: "^TestRecord$",
	}, {
		bug: "a resumed run has two values for one iteration", how: "in the events",
		file: "train/tensorboard.go",
		old:  "!ok || step >= int64(from) && keep > 0", new: "!ok || step < 0",
		pkg: "./train", run: "^TestEventsAreTheMetrics$",
	}, {
		bug:  "sampler off by one in the targets",
		file: "data/sampler.go",
		old:  "row[1:])", new: "row[:n])",
		pkg: "./data", run: "^TestRanksShareOneGlobalBatch$",
	}, {
		bug:  "warmup off by one",
		file: "config/lr.go",
		old:  "return o.LearningRate * float64(it+1) / (float64(w) + 1)", new: "return o.LearningRate * float64(it) / (float64(w) + 1)",
		pkg: "./config", run: "^TestLR$",
	}, {
		bug: "warmup off by one", how: "the loop feeds the next iteration's rate",
		file: "train/job.go",
		old:  "runtime.Floats(float32(st.LR))", new: "runtime.Floats(float32(j.Config.Optimizer.LR(it + 1)))",
		pkg: "./train", run: graph,
	}, {
		bug:  "loss divided by batch size",
		file: "train/job.go",
		old:  "float32(1 / float64(sequences*length))", new: "float32(1 / float64(sequences*sequences*length))",
		pkg: "./train", run: graph,
	}, {
		bug: "loss divided by batch size", how: "the printed mean",
		file: "train/evaluate.go",
		old:  "return float32(sum / float64(n)), nil", new: "return float32(sum / float64(n) / float64(j.Config.Batch.Global)), nil",
		pkg: "./train", run: "^TestEvaluate$",
	}, {
		bug:  "evaluation on the training split",
		file: "train/evaluate.go",
		old:  "mean(j.bins.Val, evalValStream, n)", new: "mean(j.bins.Train, evalTrainStream, n)",
		pkg: "./train", run: "^TestEvaluate$",
	}, {
		bug: "checkpoint forgets the moments", how: "when it is loaded",
		file: "train/job.go",
		old:  "name := s.Name\n\t\t\tif !state {", new: "name := s.Name\n\t\t\tif s.Attr.State || !state {",
		pkg: "./train", run: resume,
	}, {
		bug: "checkpoint forgets the moments", how: "when it is saved",
		file: "train/job.go",
		old:  "snap.Shards = append(snap.Shards, checkpoint.Shard{", new: "if s.Attr.State {\n\t\t\t\tcontinue\n\t\t\t}\n\t\t\tsnap.Shards = append(snap.Shards, checkpoint.Shard{",
		pkg: "./train", run: resume,
	}, {
		bug:  "checkpoint forgets the best validation loss",
		file: "train/save.go",
		old:  "r.result.BestVal, r.bestStep = *c.BestVal, c.BestStep", new: "r.bestStep = c.BestStep",
		pkg: "./train", run: resume,
	}, {
		bug:  "checkpoint forgets when the loss was best",
		file: "train/save.go",
		old:  "r.result.BestVal, r.bestStep = *c.BestVal, c.BestStep", new: "r.result.BestVal = *c.BestVal",
		pkg: "./train", run: resume,
	}, {
		bug: "resume reuses the dropout of step 0", how: "and its batches",
		file: "train/run.go",
		old:  "r.Begin(ctx, it)", new: "r.Begin(ctx, r.mfu.steps)",
		pkg: "./train", run: resume,
	}, {
		bug:  "every step has the dropout of step 0",
		file: "train/job.go",
		old:  `feeds["step"] = runtime.Ints(int32(it))`, new: `feeds["step"] = runtime.Ints(int32(0 * it))`,
		pkg: "./train", run: graph,
	}, {
		bug:  "a part of a tensor is not saved",
		file: "checkpoint/save.go",
		old:  "if taken || s.Slab.Elems() == 0 {", new: "if taken || s.Slab.Elems() == 0 || len(t.Parts) == 3 {",
		pkg: "./train", run: "^TestReshard$",
	}, {
		bug:  "parts are read from where they do not lie",
		file: "ir/slab.go",
		old:  "sb *= b.Local[i]", new: "sb *= size[i]",
		pkg: "./checkpoint", run: "^TestAnyToAny$",
	}}
}

// inThePrecision has the bugs of two-byte types and of what is kept beside them.
func inThePrecision() []mutant {
	const scaler, interp, resume = "^TestLossScaler$", "^TestInterpInHalfPrecision$", "^TestResumeInHalfPrecision$"
	return []mutant{{
		bug: "bfloat16 is cut off, not rounded", how: "in plain Go",
		file: "ir/half/half.go",
		old:  "uint16((b + 0x7fff + b>>16&1) >> 16)", new: "uint16(b >> 16)",
		pkg: "./ir/half", run: "^TestRounding$",
	}, {
		bug:  "the two formats are mixed up",
		file: "runtime/cpu/kernel/half.go",
		old:  "p.isa.narrow[f]", new: "p.isa.narrow[1-f]",
		pkg: "./runtime/cpu/kernel", run: "^TestHalf$",
	}, {
		bug: "a skipped step moves the weights", how: "the kernel does not look",
		file: "runtime/cpu/launch.go",
		old:  "!(d.arg(k, 4)[0] > 0)", new: "d.arg(k, 4)[0] < -1",
		pkg: ".", run: scaler,
	}, {
		bug:  "a skipped step is not counted",
		file: "runtime/cpu/launch.go",
		old:  "0, skipped+1, 0", new: "0, skipped, 0",
		pkg: ".", run: scaler,
	}, {
		bug:  "gradients are clipped before they are unscaled",
		file: "models/gpt/step.go",
		old:  "norm = at.Scale(norm, unscale)", new: "_ = at",
		pkg: ".", run: scaler,
	}, {
		bug:  "gradients are summed in two bytes",
		file: "models/gpt/step.go",
		old:  "wide := trace.F32", new: "wide := cfg.Float",
		pkg: "./models/gpt", run: "^TestGradientsAreSummedInFloat32$",
	}, {
		bug:  "the master copy starts as other numbers than its weight",
		file: "runtime/param.go",
		old:  "name = s.Attr.Master", new: "_ = name",
		pkg: "./runtime", run: interp,
	}, {
		bug:  "what ranks exchange is rounded at every term",
		file: "runtime/cpu/half.go",
		old:  "kernel.AddInto(d.pool, acc, term)\n", new: "kernel.AddInto(d.pool, acc, term)\n\t\t\t\tb := make([]uint16, n)\n\t\t\t\tkernel.Narrow(d.pool, format, b, acc)\n\t\t\t\tkernel.Widen(d.pool, format, acc, b)\n",
		pkg: "./runtime/cpu", run: "^TestConformance$/^1_thread$/^collectives$/^all_reduce$",
	}, {
		bug:  "a run goes on in another precision",
		file: "checkpoint/convert.go",
		old:  "if t.DType != dtype.String() {", new: "if false {",
		pkg: "./train", run: "^TestOtherPrecision$",
	}, {
		bug:  "the loss scale starts anew on resuming",
		file: "train/job.go",
		old:  "name := s.Name\n\t\t\tif !state {", new: "name := s.Name\n\t\t\tif s.Name == \"loss_scale.good\" {\n\t\t\t\tcontinue\n\t\t\t}\n\t\t\tif !state {",
		pkg: "./train", run: resume,
	}, {
		bug: "a package imports what is below it", how: "the table of README.md has ir before the formats that it imports",
		file: "README.md",
		old:  "| `ir/half`, `ir` |", new: "| `ir`, `ir/half` |",
		pkg: ".", run: "^TestImportsOnlyPointUp$",
	}}
}
