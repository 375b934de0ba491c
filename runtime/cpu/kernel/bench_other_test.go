//go:build !linux

package kernel

import "testing"

// arena returns room for n float32.
func arena(_ *testing.B, n int) []float32 { return make([]float32, n) }
