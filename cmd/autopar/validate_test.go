package main

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/measured"
)

// TestFiguresOfSourcesKeepTheirOrder: sums and lists over sources have the same bits and lines every time.
func TestFiguresOfSourcesKeepTheirOrder(t *testing.T) {
	var outcomes []measured.Outcome
	low := map[string]validatedSource{}
	for i := range 12 {
		source := fmt.Sprint("s", i)
		outcomes = append(outcomes, measured.Outcome{Row: measured.Row{Source: source, Peak: 1e9}, PredictedPeak: 1e9 + int64(i*i)*77_777_777})
		low[source] = validatedSource{Rows: i, MAPE: 0.1}
	}
	listed := func() string {
		var out bytes.Buffer
		fitted{Low: low}.print(newConsole(&out, &out))
		return out.String()
	}
	mean, lines := *validateMemory(outcomes).MeanMAPE, listed()
	for range 20 {
		require.Equal(t, mean, *validateMemory(outcomes).MeanMAPE)
		require.Equal(t, lines, listed())
	}
}
