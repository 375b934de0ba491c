package trace

import "github.com/autopar/autopar/ir"

// Names of package ir that a model needs, so that it has to import only this package.
type (
	Graph     = ir.Graph
	ParamAttr = ir.ParamAttr
	AdamWAttr = ir.AdamWAttr
	RoPEAttr  = ir.RoPEAttr
	DType     = ir.DType

	LossScaleAttr = ir.LossScaleAttr
)

// See the constants of the same names in package ir.
const (
	F32  = ir.F32
	I32  = ir.I32
	BF16 = ir.BF16
	F16  = ir.F16

	Update = ir.Update

	InitZeros  = ir.InitZeros
	InitOnes   = ir.InitOnes
	InitNormal = ir.InitNormal
)
