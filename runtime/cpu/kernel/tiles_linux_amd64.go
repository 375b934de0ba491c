package kernel

import "syscall"

// tilesAllowed asks the system for the use of the tile registers, whose contents it saves only for processes that asked.
func tilesAllowed() bool {
	const archReqXcompPerm, xfeatureTileData = 0x1023, 18
	_, _, errno := syscall.RawSyscall(syscall.SYS_ARCH_PRCTL, archReqXcompPerm, xfeatureTileData, 0)
	return errno == 0
}
