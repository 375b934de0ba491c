package kernel

import (
	"embed"
	"fmt"
	"strings"

	"github.com/autopar/autopar/ir"
)

//go:embed *.cu
var files embed.FS

// program is a file of device functions.
type program struct {
	name  string
	types []ir.DType // element types T for which it is compiled
	parts []string   // other files that it includes
}

// programs lists the files that have device functions.
func programs() []program {
	all, half, one := []ir.DType{ir.F32, ir.BF16, ir.F16}, []ir.DType{ir.BF16, ir.F16}, []ir.DType{ir.F32}
	heads, tiles := []string{"heads.cu"}, []string{"heads.cu", "tiles.cu"}
	return []program{
		{name: "adamw.cu", types: all},
		{name: "attention.cu", types: all, parts: heads},
		{name: "attention_delta.cu", types: all},
		{name: "attention_grad.cu", types: all, parts: heads},
		{name: "attention_mma.cu", types: half, parts: tiles},
		{name: "attention_mma_grad.cu", types: half, parts: tiles},
		{name: "elementwise.cu", types: all},
		{name: "embedding.cu", types: all},
		{name: "fixed.cu", types: all, parts: []string{"q64.cu"}},
		{name: "loss.cu", types: all},
		{name: "matmul.cu", types: all, parts: []string{"q64.cu"}},
		{name: "move.cu", types: one},
		{name: "norm.cu", types: all},
		{name: "rope.cu", types: all},
		{name: "scalar.cu", types: one},
		{name: "sum.cu", types: all},
	}
}

// Programs lists the programs.
func Programs() []string {
	var names []string
	for _, p := range programs() {
		names = append(names, p.name)
	}
	return names
}

// Options returns the options of NVRTC that the programs need.
func Options() []string { return []string{"--std=c++17", "-default-device"} }

// Source returns the text of a program for one element type, by the name that a [Launch] has. There
// is one program per type so that a model waits only for the types that it uses. It is compiled
// with [Options].
func Source(program string) string {
	for _, p := range programs() {
		for _, d := range p.types {
			if typed(p.name, d.String()) == program {
				return text("primitives.cu") + p.portable(d)
			}
		}
	}
	panic(fmt.Sprintf("BUG: kernel: no program %q", program))
}

// typed names a program for an element type.
func typed(program, d string) string { return strings.TrimSuffix(program, ".cu") + "_" + d + ".cu" }

// Portable returns a program for all of its types, without primitives.cu. Tests have a version of
// that file for the CPU.
func Portable(program string) string {
	for _, p := range programs() {
		if p.name == program {
			return p.portable(p.types...)
		}
	}
	panic(fmt.Sprintf("BUG: kernel: no program %q", program))
}

// portable returns the prelude and other parts, and then the program in a namespace for each
// element type.
func (p program) portable(types ...ir.DType) string {
	var b strings.Builder
	b.WriteString(text("prelude.cu"))
	for _, part := range p.parts {
		b.WriteString(text(part))
	}
	for _, d := range types {
		element := d.String()
		if d == ir.F32 {
			element = "float"
		}
		fmt.Fprintf(&b, "#define TYPE %s\n#define T %s\nnamespace type_%s {\n%s}\n#undef T\n#undef TYPE\n", d, element, d, text(p.name))
	}
	return b.String()
}

// text returns a file, with a #line directive so that a compiler's messages have its line numbers.
func text(file string) string {
	b, err := files.ReadFile(file)
	if err != nil {
		panic("BUG: kernel: " + err.Error())
	}
	return fmt.Sprintf("#line 1 %q\n%s\n", file, b)
}
