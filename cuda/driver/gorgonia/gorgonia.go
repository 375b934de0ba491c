//go:build gorgonia

package gorgonia

import (
	"reflect"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/autopar/autopar/cuda/driver"
)

// Driver is the driver of this machine.
type Driver struct{ driver.Driver }

// Open opens the driver.
func Open() (driver.Driver, error) {
	d, err := driver.Open()
	if err != nil {
		return nil, err
	}
	return Driver{d}, nil
}

// refused turns an error of cu into one of package driver. cu's own type is a number of
// CUresult, and is not exported.
func refused(call string, err error) error {
	if err == nil {
		return nil
	}
	e := &driver.Error{Call: call, Name: err.Error()}
	if v := reflect.ValueOf(err); v.CanInt() {
		e.Code = int(v.Int())
	}
	return e
}

// Handles are one pointer wide on both sides.
func stream(s driver.Stream) cu.Stream       { return *(*cu.Stream)(unsafe.Pointer(&s)) }
func event(e driver.Event) cu.Event          { return *(*cu.Event)(unsafe.Pointer(&e)) }
func module(m driver.Module) cu.Module       { return *(*cu.Module)(unsafe.Pointer(&m)) }
func function(f driver.Function) cu.Function { return *(*cu.Function)(unsafe.Pointer(&f)) }
func context(c driver.Context) cu.CUContext  { return *(*cu.CUContext)(unsafe.Pointer(&c)) }

func (Driver) Version() (int, error) { return cu.Version(), nil }

func (Driver) DeviceCount() (int, error) {
	n, err := cu.NumDevices()
	return n, refused("cuDeviceGetCount", err)
}

func (Driver) DeviceName(i int) (string, error) {
	dev, err := cu.GetDevice(i)
	if err != nil {
		return "", refused("cuDeviceGet", err)
	}
	name, err := dev.Name()
	return name, refused("cuDeviceGetName", err)
}

func (Driver) DeviceMemory(i int) (int64, error) {
	dev, err := cu.GetDevice(i)
	if err != nil {
		return 0, refused("cuDeviceGet", err)
	}
	bytes, err := dev.TotalMem()
	return bytes, refused("cuDeviceTotalMem_v2", err)
}

func (Driver) Attribute(i int, a driver.Attribute) (int, error) {
	dev, err := cu.GetDevice(i)
	if err != nil {
		return 0, refused("cuDeviceGet", err)
	}
	v, err := dev.Attribute(cu.DeviceAttribute(a))
	return v, refused("cuDeviceGetAttribute", err)
}

func (Driver) RetainPrimary(i int) (driver.Context, error) {
	dev, err := cu.GetDevice(i)
	if err != nil {
		return 0, refused("cuDeviceGet", err)
	}
	c, err := dev.RetainPrimaryCtx()
	return *(*driver.Context)(unsafe.Pointer(&c)), refused("cuDevicePrimaryCtxRetain", err)
}

func (Driver) ReleasePrimary(i int) error {
	dev, err := cu.GetDevice(i)
	if err != nil {
		return refused("cuDeviceGet", err)
	}
	return refused("cuDevicePrimaryCtxRelease_v2", dev.ReleasePrimaryCtx())
}

func (Driver) SetCurrent(c driver.Context) error {
	return refused("cuCtxSetCurrent", cu.SetCurrentContext(context(c)))
}

func (Driver) MemInfo() (free, total int64, err error) {
	free, total, err = cu.MemInfo()
	return free, total, refused("cuMemGetInfo_v2", err)
}

func (Driver) Alloc(bytes int64) (driver.Ptr, error) {
	p, err := cu.MemAlloc(bytes)
	return driver.Ptr(p), refused("cuMemAlloc_v2", err)
}

func (Driver) Free(p driver.Ptr) error {
	return refused("cuMemFree_v2", cu.MemFree(cu.DevicePtr(p)))
}

func (Driver) CopyToDevice(dst driver.Ptr, src []byte, s driver.Stream) error {
	return refused("cuMemcpyHtoDAsync_v2", cu.MemcpyHtoDAsync(cu.DevicePtr(dst), unsafe.Pointer(unsafe.SliceData(src)), int64(len(src)), stream(s)))
}

func (Driver) CopyToHost(dst []byte, src driver.Ptr, s driver.Stream) error {
	return refused("cuMemcpyDtoHAsync_v2", cu.MemcpyDtoHAsync(unsafe.Pointer(unsafe.SliceData(dst)), cu.DevicePtr(src), int64(len(dst)), stream(s)))
}

func (Driver) Copy(dst, src driver.Ptr, bytes int64, s driver.Stream) error {
	return refused("cuMemcpyAsync", cu.MemcpyAsync(cu.DevicePtr(dst), cu.DevicePtr(src), bytes, stream(s)))
}

func (Driver) Set8(dst driver.Ptr, value byte, bytes int64, s driver.Stream) error {
	return refused("cuMemsetD8Async", cu.MemsetD8Async(cu.DevicePtr(dst), value, bytes, stream(s)))
}

func (Driver) CreateStream() (driver.Stream, error) {
	s, err := cu.MakeStream(cu.NonBlocking)
	return *(*driver.Stream)(unsafe.Pointer(&s)), refused("cuStreamCreate", err)
}

func (Driver) DestroyStream(s driver.Stream) error {
	of := stream(s)
	return refused("cuStreamDestroy", of.Destroy())
}

func (Driver) SyncStream(s driver.Stream) error {
	return refused("cuStreamSynchronize", stream(s).Synchronize())
}

func (Driver) CreateEvent(timed bool) (driver.Event, error) {
	flags := cu.DisableTiming
	if timed {
		flags = cu.DefaultEvent
	}
	e, err := cu.MakeEvent(flags)
	return *(*driver.Event)(unsafe.Pointer(&e)), refused("cuEventCreate", err)
}

func (Driver) DestroyEvent(e driver.Event) error {
	of := event(e)
	return refused("cuEventDestroy", cu.DestroyEvent(&of))
}

func (Driver) RecordEvent(e driver.Event, s driver.Stream) error {
	return refused("cuEventRecord", event(e).Record(stream(s)))
}

func (Driver) WaitEvent(s driver.Stream, e driver.Event) error {
	return refused("cuStreamWaitEvent", stream(s).Wait(event(e), 0))
}

func (Driver) EventDone(e driver.Event) (bool, error) {
	err := event(e).Query()
	if err == error(cu.NotReady) {
		return false, nil
	}
	return err == nil, refused("cuEventQuery", err)
}

func (Driver) LoadModule(image []byte) (driver.Module, error) {
	m, err := cu.LoadData(string(image))
	return *(*driver.Module)(unsafe.Pointer(&m)), refused("cuModuleLoadData", err)
}

func (Driver) UnloadModule(m driver.Module) error {
	return refused("cuModuleUnload", module(m).Unload())
}

func (Driver) ModuleFunction(m driver.Module, name string) (driver.Function, error) {
	f, err := module(m).Function(name)
	return *(*driver.Function)(unsafe.Pointer(&f)), refused("cuModuleGetFunction", err)
}

func (Driver) FunctionAttribute(f driver.Function, a driver.FunctionAttribute) (int, error) {
	v, err := function(f).Attribute(cu.FunctionAttribute(a))
	return v, refused("cuFuncGetAttribute", err)
}
