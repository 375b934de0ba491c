// CUDA 13 gave five functions of the driver new parameters under their old names.
// gorgonia.org/cu v0.9.6 calls them as CUDA 12 has them. This header stands before CUDA's
// and declares them so again; drivers keep the old functions for older programs.
#include_next <cuda.h>

#if CUDA_VERSION >= 13000
#undef cuCtxCreate
#undef cuMemAdvise
#undef cuMemPrefetchAsync
#undef cuGraphAddDependencies
#undef cuGraphGetEdges
#define cuCtxCreate cuCtxCreate_v2
#ifdef __cplusplus
extern "C" {
#endif
CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev);
CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device);
CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream);
CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to, size_t numDependencies);
CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges);
#ifdef __cplusplus
}
#endif
#endif
