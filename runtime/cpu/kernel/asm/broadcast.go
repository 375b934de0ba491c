package main

import (
	"strings"

	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// embedBroadcasts makes instructions on 512-bit registers read one element of a constant and
// broadcast it. A constant of 64 bytes would cross a cache line in every other program, because the
// linker aligns data to 32 bytes; GELU then took 30 % longer (2026-11-22).
func embedBroadcasts(file *ir.File) {
	for _, f := range file.Functions() {
		for _, i := range f.Instructions() {
			constant, wide := false, false
			for _, op := range i.Operands {
				switch op := op.(type) {
				case operand.Mem:
					constant = constant || strings.HasPrefix(op.Symbol.Name, constantPrefix)
				case reg.Register:
					wide = wide || op.Size() == 4*widest
				}
			}
			switch {
			case !constant || !wide:
			case i.Opcode == "VMOVUPS":
				i.Opcode = "VBROADCASTSS"
			default:
				i.Suffixes = append(i.Suffixes, "BCST")
			}
		}
	}
}
