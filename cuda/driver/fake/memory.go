package fake

import "github.com/autopar/autopar/cuda/driver"

// pinned returns host memory as a range.
func pinned(memory []byte) Range { return Range{driver.Ptr(address(memory)), int64(len(memory))} }

// CopyToDevice copies from host memory.
func (d *Driver) CopyToDevice(dst driver.Ptr, src []byte, s driver.Stream) error {
	return d.copy("cuMemcpyHtoDAsync_v2", Range{dst, int64(len(src))}, pinned(src), s)
}

// CopyToHost copies to host memory.
func (d *Driver) CopyToHost(dst []byte, src driver.Ptr, s driver.Stream) error {
	return d.copy("cuMemcpyDtoHAsync_v2", pinned(dst), Range{src, int64(len(dst))}, s)
}

// Copy copies between devices, or on one.
func (d *Driver) Copy(dst, src driver.Ptr, bytes int64, s driver.Stream) error {
	return d.copy("cuMemcpyAsync", Range{dst, bytes}, Range{src, bytes}, s)
}

func (d *Driver) copy(call string, to, from Range, s driver.Stream) error {
	if to.Bytes == 0 {
		return invalid(call, "no bytes")
	}
	return d.give(s, call, []Range{from}, []Range{to}, func() error {
		copy(d.Memory(to), d.Memory(from))
		return nil
	})
}

// Set8 fills memory.
func (d *Driver) Set8(dst driver.Ptr, value byte, bytes int64, s driver.Stream) error {
	r := Range{dst, bytes}
	return d.give(s, "cuMemsetD8Async", nil, []Range{r}, func() error {
		m := d.Memory(r)
		for i := range m {
			m[i] = value
		}
		return nil
	})
}

// LoadModule, and what needs it, is not there: see [Driver.Run].
func (d *Driver) LoadModule([]byte) (driver.Module, error) {
	return 0, failed("cuModuleLoadDataEx", 209, "CUDA_ERROR_NO_BINARY_FOR_GPU: the fake runs no device code")
}

// UnloadModule has nothing to unload.
func (d *Driver) UnloadModule(driver.Module) error { return invalid("cuModuleUnload", "no module") }

// ModuleFunction finds nothing.
func (d *Driver) ModuleFunction(driver.Module, string) (driver.Function, error) {
	return 0, invalid("cuModuleGetFunction", "no module")
}

// FunctionAttribute has no functions.
func (d *Driver) FunctionAttribute(driver.Function, driver.FunctionAttribute) (int, error) {
	return 0, invalid("cuFuncGetAttribute", "no function")
}

// SetFunctionAttribute has no functions.
func (d *Driver) SetFunctionAttribute(driver.Function, driver.FunctionAttribute, int) error {
	return invalid("cuFuncSetAttribute", "no function")
}

// Launch has no functions.
func (d *Driver) Launch(driver.Function, driver.Dims, driver.Dims, uint32, driver.Stream, []uint64) error {
	return invalid("cuLaunchKernel", "no function")
}
