// Package irtest is for tests only: a runner of golden scripts, random graphs
// over every op of the table, and random legal ways to place them on a mesh.
//
// All random functions take their generator from the caller, who prints the seed ([Rand] does).
package irtest

import (
	"math/rand/v2"
	"testing"
)

// Rand returns a generator of the given seed, which the log of a failed test
// shows.
func Rand(t testing.TB, seed uint64) *rand.Rand {
	t.Helper()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
