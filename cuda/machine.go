package cuda

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/autopar/autopar/cuda/driver"
)

// MachineOptions are the options of [Machine]. The zero value is ready for use.
type MachineOptions struct {
	// CacheDir is where compiled kernels and the choice of matrix products are kept between runs.
	// If empty, it is a folder of the user's cache directory.
	CacheDir string
}

// Machine opens the GPUs and libraries of this machine. The error is a [driver.MissingError] if
// something is missing or too old. NCCL is loaded when it is first needed.
func Machine(opts MachineOptions) (*System, error) {
	drv, err := openDriver()
	if err != nil {
		return nil, err
	}
	drv = &keeper{Driver: drv, kept: map[int]bool{}}
	version, err := drv.Version()
	if err != nil {
		return nil, err
	}
	compiler, err := driver.NewCompiler(version)
	if err != nil {
		return nil, err
	}
	dir := opts.CacheDir
	if dir == "" {
		if cache, err := os.UserCacheDir(); err == nil {
			dir = filepath.Join(cache, "autopar", "cuda")
		}
	}
	compiler = driver.Cached(compiler, dir)
	lt, err := driver.NewLt(version, driver.LtOptions{Dir: dir})
	if err != nil {
		return nil, err
	}
	return &System{
		Driver: drv,
		Engine: func(gpu int) (Engine, error) {
			capability, err := capabilityOf(drv, gpu)
			if err != nil {
				return nil, err
			}
			most, err := drv.Attribute(gpu, driver.SharedPerBlockMax)
			if err != nil {
				return nil, err
			}
			return newKernels(drv, compiler, capability, most), nil
		},
		BLAS: func(gpu int) (driver.BLAS, error) {
			name, err := drv.DeviceName(gpu)
			if err != nil {
				return nil, err
			}
			return lt.Open(drv, name)
		},
		Collectives: driver.NewCollectives,
		Versions: []string{
			fmt.Sprintf("driver for CUDA %d.%d", version/1000, version%1000/10),
			fmt.Sprintf("NVRTC %d.%d", compiler.Version()/1000, compiler.Version()%1000/10),
			"cuBLASLt " + lt.Version(),
		},
	}, nil
}

// keeper keeps the primary context of every GPU that was used until the process ends. Otherwise the
// context would be destroyed when the last backend closes, with all that cuBLASLt and NCCL have
// loaded into it, and made again for the next one.
type keeper struct {
	driver.Driver

	mu   sync.Mutex
	kept map[int]bool // by device
}

// RetainPrimary implements [driver.Driver].
func (k *keeper) RetainPrimary(device int) (driver.Context, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.kept[device] {
		if _, err := k.Driver.RetainPrimary(device); err != nil {
			return 0, err
		}
		k.kept[device] = true
	}
	return k.Driver.RetainPrimary(device)
}
