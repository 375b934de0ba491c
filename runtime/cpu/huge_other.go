//go:build !linux

package cpu

func advise([]float32) {}
