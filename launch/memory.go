package launch

import (
	"fmt"
	"os"
)

// memoryVariable is that of [Place.Memory], which only [Agent] sets.
const memoryVariable = "AUTOPAR_MEMORY_FD"

// firstExtra is the descriptor that a process has of the first file it is given beside standard input, output and error.
const firstExtra = 3

// memories are the files of memory that an agent keeps, one for each process that it starts. What a process leaves there
// is there for the process that is started in its place, and gone with the agent.
type memories []*os.File

// grow makes files for so many processes, where the system has such files.
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

// of returns what a process is given: its file, and the variable that says where it is.
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
