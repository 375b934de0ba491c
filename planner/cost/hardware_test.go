package cost

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPresetsAreThePublishedHardware compares every built-in cluster with the
// figures collected for it, and finds one for every GPU of the collection.
func TestPresetsAreThePublishedHardware(t *testing.T) {
	file, err := os.Open(filepath.Join("..", "..", "..", "shared", "measured", "hardware.csv"))
	if err != nil {
		t.Skip("the collected hardware figures are not here: ", err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, row := range rows[1:] {
		cell := map[string]string{}
		for i, name := range rows[0] {
			cell[name] = row[i]
		}
		number := func(column string, unit float64) float64 {
			f, err := strconv.ParseFloat(cell[column], 64)
			require.NoError(t, err, "%s of %s", column, cell["gpu"])
			return f * unit
		}
		c, err := Load(cell["gpu"])
		require.NoError(t, err, "a built-in cluster of the device %s", cell["gpu"])
		seen[c.Name] = true
		require.NotEmpty(t, c.Source)
		for dtype, column := range map[string]string{
			"f32": "fp32_tflops", "tf32": "tf32_dense_tflops", "f16": "fp16_dense_tflops", "bf16": "bf16_dense_tflops", "f8": "fp8_dense_tflops",
		} {
			if stated := c.Device.FLOPS[dtype]; stated != 0 && cell[column] != "" {
				require.InEpsilon(t, number(column, 1e12), stated, 1e-12, "%s of %s", dtype, c.Name)
			} else if dtype == "f16" || dtype == "bf16" {
				require.Equal(t, cell[column] == "", stated == 0, "%s of %s", dtype, c.Name)
			}
		}
		require.InEpsilon(t, number("mem_usable_gib_approx", 1<<30), float64(c.Device.Memory), 1e-9, c.Name)
		require.InEpsilon(t, number("mem_gb_s", 1e9), c.Device.MemoryBandwidth, 1e-12, c.Name)
		require.InEpsilon(t, number("typical_gpus_per_node", 1), float64(c.DevicesPerNode), 1e-12, c.Name)
		require.InEpsilon(t, number("intra_node_gb_s_per_direction", 1e9), c.IntraNode.Bandwidth, 1e-12, c.Name)
		require.InEpsilon(t, number("typical_inter_node_gb_s_per_gpu", 1e9), c.InterNode.Bandwidth, 1e-12, c.Name)
	}
	for _, name := range Names() {
		base, ours := strings.CutSuffix(name, "-autopar")
		require.True(t, seen[base] || name == "cpu", "%s is not among the collected figures", base)
		if !ours {
			continue
		}
		// With this project's own runtime a device computes faster, and is otherwise the same.
		is, err := Load(name)
		require.NoError(t, err)
		of, err := Load(base)
		require.NoError(t, err)
		require.Equal(t, "autopar-cuda", is.Software.Name)
		is.Name, is.Software, is.Device.LaunchOverhead = of.Name, of.Software, of.Device.LaunchOverhead
		is.Device.Efficiency.Matmul, is.Device.Efficiency.TileFill = of.Device.Efficiency.Matmul, of.Device.Efficiency.TileFill
		require.Equal(t, of, is)
	}
}
