//go:build !linux

package driver

import "errors"

var errNotHere = errors.New("CUDA is used on Linux only")

func dlopen(string) (uintptr, error)         { return 0, errNotHere }
func dlsym(uintptr, string) (uintptr, error) { return 0, errNotHere }

func (p proc) call(...uintptr) int   { panic("BUG: driver: nothing is loaded here") }
func (p proc) callString(int) string { panic("BUG: driver: nothing is loaded here") }
func (p proc) version() int          { panic("BUG: driver: nothing is loaded here") }
func memory(uintptr, int64) []byte   { panic("BUG: driver: nothing is loaded here") }

func goString(uintptr) string { panic("BUG: driver: nothing is loaded here") }

type uniqueID struct{ bytes [128]byte }

func joinFunc(proc) func(*uintptr, int32, uniqueID, int32) int32 { return nil }

func keep(any) {}

func lockFile(string) (unlock func(), busy bool) { return func() {}, false }
