package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPrepareStreams: the memory of data prepare does not grow with the text.
func TestPrepareStreams(t *testing.T) {
	t.Parallel() // it mostly waits for processes
	if goruntime.GOOS != "linux" {
		t.Skip("/proc is Linux's")
	}
	if testing.Short() {
		t.Skip("-short: it prepares texts of megabytes")
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	autopar := filepath.Join(dir, "autopar")
	require.NoError(t, os.Symlink(exe, autopar))
	const size = 6 << 20
	for _, tokenizer := range []string{"char", "gpt2"} {
		peak := func(size int) int {
			text := filepath.Join(dir, fmt.Sprint(tokenizer, size))
			const line = " international relations\n"
			require.NoError(t, os.WriteFile(text, []byte(strings.Repeat(line, size/len(line))), 0o600))
			cmd := exec.Command(autopar, "data", "prepare", "--input", text, "--tokenizer", tokenizer, "-o", text+".bins")
			cmd.Env = append(os.Environ(), "GOGC=10") // so that the peak is close to the memory in use: byte pairs have tens of MB whatever the text
			return mostMemory(t, cmd)
		}
		small, large := peak(1<<10), peak(size)
		require.Less(t, large-small, size, "%s: %d bytes for a kilobyte, %d for %d", tokenizer, small, large, size)
	}
}

// mostMemory runs a command and returns the peak memory of its process, in bytes. It asks while the process runs, because the
// figure that the system returns at its end includes the process that has started it.
func mostMemory(t *testing.T, cmd *exec.Cmd) (peak int) {
	t.Helper()
	var stderr syncBuffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	most := regexp.MustCompile(`(?m)^Name:\s+autopar\n(?:.*\n)*VmHWM:\s+(\d+) kB$`)
	for {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)) // nothing, once it has ended
		if m := most.FindSubmatch(text); m != nil {
			_, err := fmt.Sscan(string(m[1]), &peak)
			require.NoError(t, err)
		}
		select {
		case err := <-ended:
			require.NoError(t, err, "%s", &stderr)
			require.NotZero(t, peak)
			return peak << 10
		case <-time.After(time.Millisecond):
		}
	}
}
