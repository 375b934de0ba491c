package main

import (
	"strings"

	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// embedBroadcasts has instructions on registers of 512 bits read one element of a constant and repeat it. The linker puts
// data at multiples of 32 bytes, and a constant of 64 would lie across two lines of the cache in every other program, in
// which GELU then took 30 % longer (2026-11-22).
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
