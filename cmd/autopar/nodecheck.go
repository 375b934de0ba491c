package main

import (
	"context"
	"errors"
	"time"

	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/launch"
	"github.com/autopar/autopar/nodecheck"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
)

// The sizes of the matrices of a check. A product takes about a millisecond.
const (
	checkSizeCPU = 512
	checkSizeGPU = 4096
)

// checkNodes compares the ranks of a run before it trains. system has the GPUs; it is nil on the CPU.
func (c *runCmd) checkNodes(ctx context.Context, con *console, peers *launch.Peers, system *cuda.System) (err error) {
	if peers == nil {
		return usagef("run: --node-check compares the processes of a run, and this one is alone: start it by autopar launch with at least 2 processes")
	}
	var backend runtime.Backend
	size := checkSizeCPU
	if system != nil {
		opts := c.options()
		opts.Eager = true
		backend, size = cuda.New(system, opts), checkSizeGPU
	} else if backend, err = cpu.New(cpu.Options{Threads: 1}); err != nil {
		return err
	}
	device, err := nodecheck.NewDevice(backend, size, c.Timeout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	report, err := nodecheck.Run(ctx, peers, device, nodecheck.Options{Timeout: min(c.Timeout, time.Minute)})
	if err != nil {
		return err
	}
	con.note("%s", report)
	return nil
}
