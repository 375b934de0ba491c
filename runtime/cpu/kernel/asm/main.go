// Command asm writes the inner loops of package kernel and their Go declarations, asm_amd64.s and asm_amd64.go for AVX2 and
// AVX-512, asm_arm64.s and asm_arm64.go for NEON:
//
//	go run ./runtime/cpu/kernel/asm -dir runtime/cpu/kernel
//
// The functions are those of the isa struct in package kernel, which documents them. Three rules
// hold for all of them. They leave the upper halves of the vector registers clear, because
// otherwise a single legacy SSE instruction costs more than a loop. The tail of a loop runs the
// same body with masked loads and stores, so that a result does not depend on an element's
// position. A constant is a memory operand of eight equal floats unless a register is free.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/pass"
	"github.com/mmcloughlin/avo/printer"
)

func main() {
	dir := flag.String("dir", "runtime/cpu/kernel", "directory to write to")
	flag.Parse()
	files, err := generate()
	if err != nil {
		log.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(*dir, name), text, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// generate returns the generated files by name.
func generate() (map[string][]byte, error) {
	g := &generator{x86: build.NewContext(), constants: map[uint32]string{}}
	g.product(avx2Tile)
	g.product(avx512Tile)
	g.peak(avx2Tile)
	g.peak(avx512Tile)
	g.packs()
	g.tiles()
	g.scoreRows()
	g.both(g.fetching(g.vectors, g.exponentials, g.gelus, g.swiglus, g.adamw), g.normalization, g.rotation, g.dropout)
	g.fetching(g.reductions)()
	g.halves()
	g.fixed()
	g.tables()

	file, err := g.x86.Result()
	if err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}
	if err := pass.Compile.Execute(file); err != nil {
		return nil, fmt.Errorf("compile: %w", err)
	}
	embedBroadcasts(file)
	config := printer.Config{Name: "autopar", Argv: []string{"go", "run", "./runtime/cpu/kernel/asm"}, Pkg: "kernel"}
	text, err := printer.NewGoAsm(config).Print(file)
	if err != nil {
		return nil, fmt.Errorf("print assembly: %w", err)
	}
	stubs, err := printer.NewStubs(config).Print(file)
	if err != nil {
		return nil, fmt.Errorf("print declarations: %w", err)
	}
	generated, err := generateNEON()
	if err != nil {
		return nil, fmt.Errorf("arm64: %w", err)
	}
	generated["asm_amd64.s"], generated["asm_amd64.go"] = text, stubs
	return generated, nil
}
