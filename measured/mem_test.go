package measured

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMem(t *testing.T) {
	for _, name := range []string{"memory_fit_train.csv", "train.csv"} {
		f, err := os.Open("/work/shared/measured/" + name)
		require.NoError(t, err)
		rows, err := Read(name, f)
		require.NoError(t, err)
		right, n := map[string]int{}, 0
		skip := map[string]int{}
		var rat []float64
		for i, r := range rows {
			if name == "train.csv" && r.PeakGiB == 0 {
				continue
			}
			if i%3 != 0 && name != "train.csv" {
				continue
			}
			c, err := Compile(r)
			if err != nil {
				skip[err.Error()]++
				continue
			}
			cl, _ := r.Cluster()
			o := c.Predict(cl)
			gib := float64(o.PredictedBytes) / (1 << 30)
			if r.Fits != nil {
				n++
				for res := 0; res < 24; res += 2 {
					if (gib+float64(res) < 79.2) == *r.Fits {
						right[fmt.Sprint(res)]++
					}
				}
				if (gib+4 < 79.2) != *r.Fits && os.Getenv("V") != "" {
					fmt.Printf("%s %s L%d s%d tp%d pp%d dp%d mb%d sp%v rec=%s k=%s: %.1f GiB fits %v\n", r.ID, r.ModelName, r.Layers, r.SeqLen, r.TP, r.PP, r.DP, r.MicroBatch, r.SequenceParallel, r.Recompute, r.AttentionKernel, gib, *r.Fits)
				}
			} else {
				rat = append(rat, gib/r.PeakGiB)
				fmt.Printf("%s %s %s: %.1f vs %.1f %s %.2f\n", r.ID, r.Source, r.ModelName, gib, r.PeakGiB, r.PeakKind, gib/r.PeakGiB)
			}
		}
		fmt.Println(name, n, right, skip)
	}
}
