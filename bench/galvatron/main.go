// Command galvatron finds the plan of least cost under Galvatron's cost model, from the
// profile files of a checkout of it: see bench/galvatron.sh.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/autopar/autopar/planner/galvatron"
)

func main() {
	checkout := flag.String("checkout", "", "directory of Galvatron's repository")
	gigabytes := flag.Int("memory", 36, "GB of a device")
	batch := flag.Int("batch", 64, "samples of a step")
	out := flag.String("o", "", "file for the plan")
	cost := flag.String("cost", "", "price the plan in this file instead of searching")
	flag.Parse()
	if err := run(*checkout, *gigabytes, *batch, *out, *cost); err != nil {
		fmt.Fprintln(os.Stderr, "galvatron:", err)
		os.Exit(1)
	}
}

// run searches, or prices a plan, for Llama-2 7B with 2,048 tokens on a node of 8 devices.
func run(checkout string, gigabytes, batch int, out, cost string) error {
	profile, err := galvatron.Read(galvatron.FilesOf(checkout, "llama2-7b", 1, 8), 2048)
	if err != nil {
		return err
	}
	m := &galvatron.Model{Profile: profile, Layers: 32, Hidden: 4096, Tokens: 2048, Devices: 8, Memory: gigabytes * 1024}
	plan := &galvatron.Plan{}
	start := time.Now()
	looked := 0
	if cost != "" {
		text, err := os.ReadFile(cost)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(text, plan); err != nil {
			return err
		}
	} else if plan, looked, err = m.Search(batch); err != nil {
		return err
	}
	seconds := time.Since(start).Seconds()
	c, err := m.Cost(plan)
	if err != nil {
		return err
	}
	fmt.Printf("{\"seconds\": %.4f, \"outlines\": %d, \"milliseconds\": %.9f, \"megabytes\": %s, \"fits\": %v}\n", seconds, looked, 1000*c.Seconds, text(c.MB), c.Fits)
	if out == "" {
		return nil
	}
	return os.WriteFile(out, []byte(text(plan)), 0o666)
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return string(b)
}
