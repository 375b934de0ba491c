package cuda

import (
	"fmt"
	"sync"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/ir"
)

// kernels is the [Engine] of a GPU. It compiles the device code of package kernel with NVRTC.
type kernels struct {
	drv      driver.Driver
	compiler driver.Compiler
	arch     string
	most     int // bytes of shared memory that a block can have

	loading   sync.Mutex
	mu        sync.Mutex
	programs  map[string]*program // by name
	wanted    []kernel.Launch     // launches that Check has seen and Load has not
	functions map[[2]string]driver.Function
	shared    map[driver.Function]uint32 // dynamic shared memory that functions are allowed, bytes
}

// program is machine code. made is closed when the compiler is done with it.
type program struct {
	made   chan struct{}
	image  []byte
	err    error
	module driver.Module // 0 until it is loaded
}

// newKernels returns the engine of a GPU of a compute capability, whose blocks have at most some bytes of
// shared memory.
func newKernels(drv driver.Driver, compiler driver.Compiler, capability, most int) *kernels {
	return &kernels{drv: drv, compiler: compiler, arch: archOf(capability), most: most, programs: map[string]*program{},
		functions: map[[2]string]driver.Function{}, shared: map[driver.Function]uint32{}}
}

// archOf names an architecture for the compiler. The letter a, from Hopper on, allows instructions
// that later architectures may not have.
func archOf(capability int) string {
	if capability >= 90 {
		return fmt.Sprintf("sm_%da", capability)
	}
	return fmt.Sprintf("sm_%d", capability)
}

// compile starts compiling a program, unless it has been started before.
func (e *kernels) compile(name string) *program {
	p := e.programs[name]
	if p == nil {
		p = &program{made: make(chan struct{})}
		e.programs[name] = p
		go func() {
			defer close(p.made)
			p.image, p.err = e.compiler.Compile(name, kernel.Source(name), e.arch, kernel.Options())
		}()
	}
	return p
}

// function returns the function of a launch. It waits until the program is compiled, and loads it.
func (e *kernels) function(l kernel.Launch) (driver.Function, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := [2]string{l.Program, l.Name}
	if f, ok := e.functions[key]; ok {
		return f, e.share(f, l)
	}
	p := e.compile(l.Program)
	<-p.made
	if p.err != nil {
		return 0, p.err
	}
	if p.module == 0 {
		var err error
		if p.module, err = e.drv.LoadModule(p.image); err != nil {
			return 0, fmt.Errorf("loading %s: %w", l.Program, err)
		}
		p.image = nil
	}
	f, err := e.drv.ModuleFunction(p.module, l.Name)
	if err != nil {
		return 0, fmt.Errorf("%s has no %s: %w", l.Program, l.Name, err)
	}
	e.functions[key] = f
	return f, e.share(f, l)
}

// share allows a function the dynamic shared memory of a launch. The limit never falls, so that
// earlier launches stay allowed. By default a function may have 48 KB less its static shared
// memory.
func (e *kernels) share(f driver.Function, l kernel.Launch) error {
	if l.Shared <= e.shared[f] {
		return nil
	}
	if err := e.drv.SetFunctionAttribute(f, driver.SharedMax, int(l.Shared)); err != nil {
		return fmt.Errorf("%s: %d bytes of shared memory: %w", l.Name, l.Shared, err)
	}
	e.shared[f] = l.Shared
	return nil
}

// Check starts compiling the programs that a group launches. The error is a [DeviceError] if the GPU has too
// little shared memory for one of them.
func (e *kernels) Check(g kernel.Group) error {
	launches, err := kernel.Launches(g, kernel.Anywhere, 0)
	if err != nil {
		return err
	}
	for _, l := range launches {
		if int(l.Shared) > e.most {
			return &DeviceError{fmt.Sprintf("%s needs %d bytes of shared memory in a block, this GPU (%s) has at most %d", l.Name, l.Shared, e.arch, e.most)}
		}
	}
	e.want(launches...)
	return nil
}

// want starts compiling the programs of launches, whose functions Load then finds.
func (e *kernels) want(launches ...kernel.Launch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range launches {
		e.compile(l.Program)
	}
	e.wanted = append(e.wanted, launches...)
}

// CheckExchanges wants a function for each size of unit that Move may copy.
func (e *kernels) CheckExchanges(moves, sums bool) error {
	if sums {
		e.want(kernel.Exceeds(0, 0, 1, 1), kernel.Void(0, 0, 1))
	}
	for unit := int64(2); moves && unit <= 16; unit *= 2 {
		l, err := kernel.Move(unit, 0, 0, kernel.Dim{N: 1, From: 1, To: 1})
		if err != nil {
			return err
		}
		e.want(l)
	}
	return nil
}

// Load finds the functions of all launches that Check has seen.
func (e *kernels) Load() error {
	e.loading.Lock() // a rank on the same GPU also waits for what another has checked
	defer e.loading.Unlock()
	e.mu.Lock()
	wanted := e.wanted
	e.wanted = nil
	e.mu.Unlock()
	for _, l := range wanted {
		if _, err := e.function(l); err != nil {
			return err
		}
	}
	return nil
}

func (e *kernels) Scratch(g kernel.Group) int64 { return kernel.Scratch(g) }

// Prepare finds the functions of all launches of a group.
func (e *kernels) Prepare(g kernel.Group, at kernel.Place, scratch driver.Ptr) (func(s driver.Stream) error, error) {
	launches, err := kernel.Launches(g, at, uint64(scratch))
	if err != nil {
		return nil, err
	}
	functions := make([]driver.Function, len(launches))
	for i, l := range launches {
		if functions[i], err = e.function(l); err != nil {
			return nil, err
		}
	}
	return func(s driver.Stream) error {
		for i := range launches {
			if err := e.launch(functions[i], &launches[i], s); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

func (e *kernels) launch(f driver.Function, l *kernel.Launch, s driver.Stream) error {
	if err := e.drv.Launch(f, l.Grid, l.Block, l.Shared, s, l.Args); err != nil {
		return fmt.Errorf("%s, grid %v, block %v: %w", l.Name, l.Grid, l.Block, err)
	}
	return nil
}

// Reduce launches the kernel that loopback collectives use.
func (e *kernels) Reduce(s driver.Stream, by ir.Reduction, d ir.DType, out driver.Ptr, in []driver.Ptr, elems int64) error {
	reduce := kernel.Reduce
	if by == ir.Max {
		reduce = kernel.ReduceMax
	}
	if !d.Float() && (d != ir.Q64 || by != ir.Sum) {
		return fmt.Errorf("cuda: no kernel for a %s of %s over ranks", by, d)
	}
	if len(in) > kernel.MaxInputs {
		return fmt.Errorf("cuda: a collective of %d ranks on one GPU, want at most %d", len(in), kernel.MaxInputs)
	}
	from := make([]uint64, len(in))
	for i, p := range in {
		from[i] = uint64(p)
	}
	return e.once(s, reduce(d, uint64(out), from, elems))
}

// Exceeds is for sums of fixed-point numbers by NCCL: see groupByNCCL.
func (e *kernels) Exceeds(s driver.Stream, flag, x driver.Ptr, elems, limit int64) error {
	return e.once(s, kernel.Exceeds(uint64(flag), uint64(x), elems, limit))
}

// Void is for the same.
func (e *kernels) Void(s driver.Stream, flag, x driver.Ptr, elems int64) error {
	return e.once(s, kernel.Void(uint64(flag), uint64(x), elems))
}

// Move is for values that NCCL moves packed.
func (e *kernels) Move(s driver.Stream, d ir.DType, to, from driver.Ptr, dims ...kernel.Dim) error {
	l, err := kernel.Move(d.Size(), uint64(to), uint64(from), dims...)
	if err != nil {
		return fmt.Errorf("cuda: packing %w", err)
	}
	return e.once(s, l)
}

func (e *kernels) once(s driver.Stream, l kernel.Launch) error {
	f, err := e.function(l)
	if err != nil {
		return err
	}
	return e.launch(f, &l, s)
}

// Close unloads the modules.
func (e *kernels) Close() error {
	var first error
	for _, p := range e.programs {
		if p.module == 0 {
			continue
		}
		if err := e.drv.UnloadModule(p.module); err != nil && first == nil {
			first = err
		}
	}
	return first
}
