package planner

import (
	"fmt"
	"os"
	"runtime/pprof"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/trace"
)

func TestZY(t *testing.T) {
	if os.Getenv("ZZ") == "" {
		t.Skip()
	}
	c, err := gpt.Preset("gpt3-175b")
	require.NoError(t, err)
	c.Float = trace.BF16
	g := step(t, c, 1536)
	cl := cluster(t, "h100")
	n, _ := strconv.Atoi(os.Getenv("ZZ"))
	f, _ := os.Create("/tmp/core.prof")
	pprof.StartCPUProfile(f)
	go func() {
		time.Sleep(45 * time.Second)
		pprof.StopCPUProfile()
		f.Close()
		os.Exit(3)
	}()
	t0 := time.Now()
	res, err := Search(g, 1536, cl, Options{RuntimeNGPUs: n, TopK: 3})
	require.NoError(t, err)
	fmt.Println(time.Since(t0))
	pprof.StopCPUProfile()
	fmt.Printf("%+v\n%+v\n%+v\n", *res.Plan, res.Prediction, res.Stats)
	for _, a := range res.Alternatives {
		fmt.Printf("%+v\n%+v\n", *a.Plan, a.Prediction)
	}
}

func TestZF(t *testing.T) {
	if os.Getenv("ZZ") == "" {
		t.Skip()
	}
	c, err := gpt.Preset("gpt3-175b")
	require.NoError(t, err)
	c.Float = trace.BF16
	g := step(t, c, 1536)
	cl := cluster(t, "h100")
	n, _ := strconv.Atoi(os.Getenv("ZZ"))
	o, err := Options{RuntimeNGPUs: n, TopK: 3}.validate(1536)
	require.NoError(t, err)
	s := newSearcher(g, 1536, cl, o)
	s.layouts.ranks = 16
	t0 := time.Now()
	s.layouts.find(2)
	fmt.Println("layout", time.Since(t0))
	t0 = time.Now()
	require.NoError(t, s.outlines())
	fmt.Println("outlines", time.Since(t0), len(s.pending))
	least := never
	items := 0
	for _, p := range s.pending {
		least = min(least, p.floor())
		items += len(p.left)
	}
	fmt.Println("least", least, "items", items)
	for _, f := range []float64{1.01, 1.03, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5} {
		k, rel := 0, 0
		sk := map[degrees]bool{}
		for _, p := range s.pending {
			for _, x := range p.left {
				if float64(x.floor) <= f*float64(least) {
					if p.relief {
						rel++
					} else {
						k++
					}
					d := p.degrees
					d.plan = 0
					sk[d] = true
				}
			}
		}
		fmt.Println(f, k, rel, len(sk))
	}
}
