package driver

import (
	"fmt"
	"unsafe"
)

// MinCUDA is the oldest CUDA version that a driver must support, in the unit of [Driver.Version].
const MinCUDA = 12000

// libcuda is the driver of this machine.
type libcuda struct {
	getErrorName, driverGetVersion, deviceGetCount, deviceGet, deviceGetName, deviceTotalMem, deviceGetAttribute,
	primaryRetain, primaryRelease, setCurrent, memGetInfo, memAlloc, memFree, hostAlloc, freeHost,
	copyHtoD, copyDtoH, copyAny, memsetD8, streamCreate, streamDestroy, streamSync, streamWait,
	eventCreate, eventDestroy, eventRecord, eventQuery, eventElapsed,
	moduleLoad, moduleUnload, moduleFunction, funcGet, funcSet, launchKernel,
	beginCapture, endCapture, graphDestroy, graphInstantiate, graphLaunch, execDestroy proc
}

var _ Driver = (*libcuda)(nil)

// Open loads the NVIDIA driver and initializes it. The error is a [MissingError] if there is no
// driver, no GPU, or the driver is too old.
func Open() (Driver, error) {
	lib, err := libCUDA.open([]int{1})
	if err != nil {
		return nil, err
	}
	return newLibcuda(lib)
}

func newLibcuda(lib *shared) (*libcuda, error) {
	d := &libcuda{}
	var missing error
	for name, p := range map[string]*proc{
		"cuGetErrorName": &d.getErrorName, "cuDriverGetVersion": &d.driverGetVersion, "cuDeviceGetCount": &d.deviceGetCount,
		"cuDeviceGet": &d.deviceGet, "cuDeviceGetName": &d.deviceGetName, "cuDeviceTotalMem_v2": &d.deviceTotalMem,
		"cuDeviceGetAttribute": &d.deviceGetAttribute, "cuDevicePrimaryCtxRetain": &d.primaryRetain,
		"cuDevicePrimaryCtxRelease_v2": &d.primaryRelease, "cuCtxSetCurrent": &d.setCurrent,
		"cuMemGetInfo_v2": &d.memGetInfo, "cuMemAlloc_v2": &d.memAlloc, "cuMemFree_v2": &d.memFree,
		"cuMemHostAlloc": &d.hostAlloc, "cuMemFreeHost": &d.freeHost, "cuMemcpyHtoDAsync_v2": &d.copyHtoD, "cuMemcpyDtoHAsync_v2": &d.copyDtoH,
		"cuMemcpyAsync": &d.copyAny, "cuMemsetD8Async": &d.memsetD8, "cuStreamCreate": &d.streamCreate, "cuStreamDestroy_v2": &d.streamDestroy,
		"cuStreamSynchronize": &d.streamSync, "cuStreamWaitEvent": &d.streamWait, "cuEventCreate": &d.eventCreate,
		"cuEventDestroy_v2": &d.eventDestroy, "cuEventRecord": &d.eventRecord, "cuEventQuery": &d.eventQuery, "cuEventElapsedTime": &d.eventElapsed,
		"cuModuleLoadData": &d.moduleLoad, "cuModuleUnload": &d.moduleUnload, "cuModuleGetFunction": &d.moduleFunction,
		"cuFuncGetAttribute": &d.funcGet, "cuFuncSetAttribute": &d.funcSet, "cuLaunchKernel": &d.launchKernel,
		"cuStreamBeginCapture_v2": &d.beginCapture, "cuStreamEndCapture": &d.endCapture, "cuGraphDestroy": &d.graphDestroy,
		"cuGraphInstantiateWithFlags": &d.graphInstantiate, "cuGraphLaunch": &d.graphLaunch, "cuGraphExecDestroy": &d.execDestroy,
	} {
		*p = lib.proc(name, &missing)
	}
	start := lib.proc("cuInit", &missing)
	if missing != nil {
		return nil, missing
	}
	if code := start.call(0); code != 0 {
		return nil, &MissingError{Library: fmt.Sprintf("%s (%s)", lib.file, lib.what), Msg: fmt.Sprintf("does not start: %v; is there a GPU, and may this process use it (nvidia-smi)?", d.error(start, code))}
	}
	version, err := d.Version()
	if err != nil {
		return nil, err
	}
	if version < MinCUDA {
		return nil, lib.tooOld(cudaVersion(version), cudaVersion(MinCUDA))
	}
	return d, nil
}

// cudaVersion formats a version 1000*major + 10*minor.
func cudaVersion(v int) string { return fmt.Sprintf("CUDA %d.%d", v/1000, v%1000/10) }

func (d *libcuda) error(p proc, code int) error {
	var name uintptr
	d.getErrorName.call(uintptr(code), uintptr(unsafe.Pointer(&name)))
	text := "an unknown error"
	if name != 0 {
		text = goString(name)
	}
	return &Error{Call: p.name, Code: code, Name: text}
}

// check turns the result of a call into an error.
func (d *libcuda) check(p proc, code int) error {
	if code == 0 {
		return nil
	}
	return d.error(p, code)
}

// Version implements [Driver], as the other methods do.
func (d *libcuda) Version() (int, error) {
	var v int32
	err := d.check(d.driverGetVersion, d.driverGetVersion.call(uintptr(unsafe.Pointer(&v))))
	return int(v), err
}

func (d *libcuda) DeviceCount() (int, error) {
	var n int32
	err := d.check(d.deviceGetCount, d.deviceGetCount.call(uintptr(unsafe.Pointer(&n))))
	return int(n), err
}

// device returns the driver's own number of a device.
func (d *libcuda) device(i int) (uintptr, error) {
	var dev int32
	err := d.check(d.deviceGet, d.deviceGet.call(uintptr(unsafe.Pointer(&dev)), uintptr(i)))
	return uintptr(dev), err
}

func (d *libcuda) DeviceName(i int) (string, error) {
	dev, err := d.device(i)
	if err != nil {
		return "", err
	}
	name := make([]byte, 256)
	if err := d.check(d.deviceGetName, d.deviceGetName.call(uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), dev)); err != nil {
		return "", err
	}
	return cString(name), nil
}

// cString returns what stands before the first zero.
func cString(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

func (d *libcuda) DeviceMemory(i int) (int64, error) {
	dev, err := d.device(i)
	if err != nil {
		return 0, err
	}
	var bytes int64
	err = d.check(d.deviceTotalMem, d.deviceTotalMem.call(uintptr(unsafe.Pointer(&bytes)), dev))
	return bytes, err
}

func (d *libcuda) Attribute(i int, a Attribute) (int, error) {
	dev, err := d.device(i)
	if err != nil {
		return 0, err
	}
	var v int32
	err = d.check(d.deviceGetAttribute, d.deviceGetAttribute.call(uintptr(unsafe.Pointer(&v)), uintptr(a), dev))
	return int(v), err
}

func (d *libcuda) RetainPrimary(i int) (Context, error) {
	dev, err := d.device(i)
	if err != nil {
		return 0, err
	}
	var c Context
	err = d.check(d.primaryRetain, d.primaryRetain.call(uintptr(unsafe.Pointer(&c)), dev))
	return c, err
}

func (d *libcuda) ReleasePrimary(i int) error {
	dev, err := d.device(i)
	if err != nil {
		return err
	}
	return d.check(d.primaryRelease, d.primaryRelease.call(dev))
}

func (d *libcuda) SetCurrent(c Context) error {
	return d.check(d.setCurrent, d.setCurrent.call(uintptr(c)))
}

func (d *libcuda) MemInfo() (free, total int64, err error) {
	err = d.check(d.memGetInfo, d.memGetInfo.call(uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total))))
	return free, total, err
}

func (d *libcuda) Alloc(bytes int64) (Ptr, error) {
	var p Ptr
	err := d.check(d.memAlloc, d.memAlloc.call(uintptr(unsafe.Pointer(&p)), uintptr(bytes)))
	return p, err
}

func (d *libcuda) Free(p Ptr) error { return d.check(d.memFree, d.memFree.call(uintptr(p))) }

func (d *libcuda) AllocHost(bytes int64) ([]byte, error) {
	const portable = 1 // pinned for all contexts
	var p uintptr
	if err := d.check(d.hostAlloc, d.hostAlloc.call(uintptr(unsafe.Pointer(&p)), uintptr(bytes), portable)); err != nil {
		return nil, err
	}
	return memory(p, bytes), nil
}

// start returns the address of host memory.
func start(m []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(m)) }

func (d *libcuda) FreeHost(m []byte) error {
	return d.check(d.freeHost, d.freeHost.call(uintptr(start(m))))
}

func (d *libcuda) CopyToDevice(dst Ptr, src []byte, s Stream) error {
	return d.check(d.copyHtoD, d.copyHtoD.call(uintptr(dst), uintptr(start(src)), uintptr(len(src)), uintptr(s)))
}

func (d *libcuda) CopyToHost(dst []byte, src Ptr, s Stream) error {
	return d.check(d.copyDtoH, d.copyDtoH.call(uintptr(start(dst)), uintptr(src), uintptr(len(dst)), uintptr(s)))
}

func (d *libcuda) Copy(dst, src Ptr, bytes int64, s Stream) error {
	return d.check(d.copyAny, d.copyAny.call(uintptr(dst), uintptr(src), uintptr(bytes), uintptr(s)))
}

func (d *libcuda) Set8(dst Ptr, value byte, bytes int64, s Stream) error {
	return d.check(d.memsetD8, d.memsetD8.call(uintptr(dst), uintptr(value), uintptr(bytes), uintptr(s)))
}

func (d *libcuda) CreateStream() (Stream, error) {
	const nonBlocking = 1 // does not wait for stream 0, which libraries may use
	var s Stream
	err := d.check(d.streamCreate, d.streamCreate.call(uintptr(unsafe.Pointer(&s)), nonBlocking))
	return s, err
}

func (d *libcuda) DestroyStream(s Stream) error {
	return d.check(d.streamDestroy, d.streamDestroy.call(uintptr(s)))
}

func (d *libcuda) SyncStream(s Stream) error {
	return d.check(d.streamSync, d.streamSync.call(uintptr(s)))
}

func (d *libcuda) CreateEvent(timed bool) (Event, error) {
	const disableTiming = 2
	flags := uintptr(disableTiming)
	if timed {
		flags = 0
	}
	var e Event
	err := d.check(d.eventCreate, d.eventCreate.call(uintptr(unsafe.Pointer(&e)), flags))
	return e, err
}

func (d *libcuda) DestroyEvent(e Event) error {
	return d.check(d.eventDestroy, d.eventDestroy.call(uintptr(e)))
}

func (d *libcuda) RecordEvent(e Event, s Stream) error {
	return d.check(d.eventRecord, d.eventRecord.call(uintptr(e), uintptr(s)))
}

func (d *libcuda) WaitEvent(s Stream, e Event) error {
	return d.check(d.streamWait, d.streamWait.call(uintptr(s), uintptr(e), 0))
}

func (d *libcuda) EventDone(e Event) (bool, error) {
	const notReady = 600
	code := d.eventQuery.call(uintptr(e))
	if code == notReady {
		return false, nil
	}
	return code == 0, d.check(d.eventQuery, code)
}

func (d *libcuda) Elapsed(from, to Event) (float32, error) {
	var ms float32
	err := d.check(d.eventElapsed, d.eventElapsed.call(uintptr(unsafe.Pointer(&ms)), uintptr(from), uintptr(to)))
	return ms, err
}

func (d *libcuda) LoadModule(image []byte) (Module, error) {
	var m Module
	err := d.check(d.moduleLoad, d.moduleLoad.call(uintptr(unsafe.Pointer(&m)), uintptr(start(image))))
	return m, err
}

func (d *libcuda) UnloadModule(m Module) error {
	return d.check(d.moduleUnload, d.moduleUnload.call(uintptr(m)))
}

// zero returns a zero-terminated copy of a string.
func zero(s string) *byte {
	b := append([]byte(s), 0)
	return &b[0]
}

func (d *libcuda) ModuleFunction(m Module, name string) (Function, error) {
	var f Function
	err := d.check(d.moduleFunction, d.moduleFunction.call(uintptr(unsafe.Pointer(&f)), uintptr(m), uintptr(unsafe.Pointer(zero(name)))))
	return f, err
}

func (d *libcuda) FunctionAttribute(f Function, a FunctionAttribute) (int, error) {
	var v int32
	err := d.check(d.funcGet, d.funcGet.call(uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(f)))
	return int(v), err
}

func (d *libcuda) SetFunctionAttribute(f Function, a FunctionAttribute, value int) error {
	return d.check(d.funcSet, d.funcSet.call(uintptr(f), uintptr(a), uintptr(value)))
}

func (d *libcuda) Launch(f Function, grid, block Dims, shared uint32, s Stream, args []uint64) error {
	params := make([]unsafe.Pointer, len(args)+1) // at least one, so that there is an address if there are no arguments
	for i := range args {
		params[i] = unsafe.Pointer(&args[i])
	}
	code := d.launchKernel.call(uintptr(f), uintptr(grid[0]), uintptr(grid[1]), uintptr(grid[2]),
		uintptr(block[0]), uintptr(block[1]), uintptr(block[2]), uintptr(shared), uintptr(s), uintptr(unsafe.Pointer(&params[0])), 0)
	keep(args)
	return d.check(d.launchKernel, code)
}

func (d *libcuda) BeginCapture(s Stream) error {
	const threadLocal = 1 // calls of other threads do not affect the capture
	return d.check(d.beginCapture, d.beginCapture.call(uintptr(s), threadLocal))
}

func (d *libcuda) EndCapture(s Stream) (Graph, error) {
	var g Graph
	err := d.check(d.endCapture, d.endCapture.call(uintptr(s), uintptr(unsafe.Pointer(&g))))
	return g, err
}

func (d *libcuda) DestroyGraph(g Graph) error {
	return d.check(d.graphDestroy, d.graphDestroy.call(uintptr(g)))
}

func (d *libcuda) Instantiate(g Graph) (Exec, error) {
	var e Exec
	err := d.check(d.graphInstantiate, d.graphInstantiate.call(uintptr(unsafe.Pointer(&e)), uintptr(g), 0))
	return e, err
}

func (d *libcuda) LaunchGraph(e Exec, s Stream) error {
	return d.check(d.graphLaunch, d.graphLaunch.call(uintptr(e), uintptr(s)))
}

func (d *libcuda) DestroyExec(e Exec) error {
	return d.check(d.execDestroy, d.execDestroy.call(uintptr(e)))
}
