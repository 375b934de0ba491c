//go:build !amd64 && !arm64

package kernel

// instructionSets returns the implementations this processor runs, the fastest last.
func instructionSets() []isa { return []isa{portable()} }
