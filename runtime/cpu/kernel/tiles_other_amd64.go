//go:build !linux

package kernel

// tilesAllowed is false where it is not known how to ask.
func tilesAllowed() bool { return false }
