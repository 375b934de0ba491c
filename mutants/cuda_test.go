//go:build mutants

package mutants

// inTheDevice has the bugs of the CUDA backend apart from its kernels.
func inTheDevice() []mutant {
	return []mutant{{
		bug: "a stream does not wait for the ranks whose arenas it reads", how: "in a barrier of loopback collectives",
		file: "cuda/collective.go",
		old:  "\t\tif err := drv.WaitEvent(l.stream, v.members[i].events[turn]); err != nil {\n\t\t\treturn err\n\t\t}\n", new: "",
		pkg: "./cuda", run: "^TestConformance$/^loopback$/^collectives$",
	}, {
		bug: "a receiver does not wait for the message", how: "only for the host of its sender",
		file: "cuda/transfer.go",
		old:  "return d.drv.WaitEvent(d.compute.stream, e)", new: "return nil",
		pkg: "./cuda", run: "^TestConformance$/^loopback$/^transfers$",
	}, {
		bug: "rows are multiplied as if they were columns", how: "the operands keep their places",
		file: "cuda/matmul.go",
		old:  "d.gpu.blas.MatMul(g, d.at(k.Args[1]), d.at(k.Args[0]),", new: "d.gpu.blas.MatMul(g, d.at(k.Args[0]), d.at(k.Args[1]),",
		pkg: "./cuda", run: "^TestConformance$/^loopback$/^ops$",
	}, {
		bug: "a graph runs with the inputs of an earlier step", how: "what it uploads from is not renewed",
		file: "cuda/replay.go",
		old:  "at += copy(s.inputs[at:], data)", new: "at += len(data)",
		pkg: ".", run: "^TestReplayedParity$/^one_rank$",
	}, {
		bug: "runs of elements are sent to the wrong rank", how: "by NCCL, where the value is cut unevenly",
		file: "cuda/nccl.go",
		old:  "return comm.Recv(l.result(me, to), int64(n), d, i, l.stream)", new: "return comm.Recv(l.result(me, 0), int64(n), d, i, l.stream)",
		pkg: "./cuda", run: "^TestConformance$/^NCCL$/^collectives$",
	}, {
		bug: "NCCL adds numbers up as another type", how: "bfloat16",
		file: "cuda/driver/nccl.go",
		old:  "ir.BF16: 9}", new: "ir.BF16: 6}",
		pkg: "./cuda/driver", run: "^TestCollectiveCalls$",
	}}
}
