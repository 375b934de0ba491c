package launch

import (
	"fmt"
	"os"
)

// memoryVariable tells a process its [Place.Memory]. Only [Agent] sets it.
const memoryVariable = "AUTOPAR_MEMORY_FD"

// firstExtra is the descriptor of the first extra file that a process is given, after the standard
// three.
const firstExtra = 3

// memories are the files in memory that an agent keeps, one per process that it starts. What a
// process leaves there is there for the process that is started in its place. The files are gone
// when the agent ends.
type memories []*os.File

// grow makes files for procs processes, if the system has such files.
func (m *memories) grow(procs int) error {
	for len(*m) < procs {
		file, err := newMemory(len(*m))
		if err != nil {
			return fmt.Errorf("launch: memory for the snapshots of process %d: %w", len(*m), err)
		}
		if file == nil {
			return nil
		}
		*m = append(*m, file)
	}
	return nil
}

// of returns what a process is given: its file, and the variable with its descriptor.
func (m memories) of(local int) (files []*os.File, env []string) {
	if local >= len(m) {
		return nil, nil
	}
	return []*os.File{m[local]}, []string{fmt.Sprint(memoryVariable, "=", firstExtra)}
}

func (m memories) close() {
	for _, file := range m {
		file.Close()
	}
}
