package cost

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReserve: accelerators keep memory free for what is not in an arena; a CPU does
// not, so its arena is all there is.
func TestReserve(t *testing.T) {
	for _, name := range Names() {
		c, err := Load(name)
		require.NoError(t, err)
		if c.Device.Shared {
			require.Zero(t, c.Device.Reserve, name)
			require.Equal(t, c.Device.Memory/3, c.MemoryPerRank(3), name)
			continue
		}
		require.Equal(t, int64(2<<30), c.Device.Reserve, name)
		require.Equal(t, c.Device.Memory-2<<30, c.MemoryPerRank(3), name)
	}
	source, err := Source("h100")
	require.NoError(t, err)
	var lines []string
	for line := range strings.Lines(string(source)) {
		if !strings.Contains(line, "reserve:") {
			lines = append(lines, line)
		}
	}
	c, err := Parse("x.yaml", []byte(strings.Join(lines, "")))
	require.NoError(t, err)
	require.Zero(t, c.Device.Reserve, "none unless stated")
	_, err = Parse("x.yaml", []byte(strings.Replace(string(source), "reserve: 2GiB", "reserve: 60GiB", 1)))
	require.ErrorContains(t, err, "device.reserve: is 6.442450944e+10 bytes, must be between 0 and")
}
