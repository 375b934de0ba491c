// Stand-ins for libcuda, NVRTC, cuBLASLt and NCCL, for tests of how they are called. Every function
// records its name and its arguments as words.
//
// Compiled with HOLLOW they serve whole programs instead: there are two GPUs with memory, copies
// happen at once, events have times, and device functions do nothing.
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifndef MEMORY
#define MEMORY (192ull << 20)
#endif

static char text[1 << 16];
static size_t at;

// fake_log copies out what was recorded since the last call.
int fake_log(char *out, size_t size) {
	size_t n = at < size ? at : size - 1;
	memcpy(out, text, n);
	out[n] = 0;
	at = 0;
	return (int)n;
}

static int fail_name_code; // the code that the next call of fail_name returns
static char fail_name[64];
int fake_fail(const char *name, int code) {
	snprintf(fail_name, sizeof fail_name, "%s", name);
	fail_name_code = code;
	return 0;
}

static int note(const char *name, int n, const uint64_t *w) {
#ifdef HOLLOW
	return 0;
#endif
	at += snprintf(text + at, sizeof text - at, "%s", name);
	for (int i = 0; i < n; i++) at += snprintf(text + at, sizeof text - at, " %llx", (unsigned long long)w[i]);
	at += snprintf(text + at, sizeof text - at, "\n");
	if (!strcmp(name, fail_name)) {
		fail_name[0] = 0;
		return fail_name_code;
	}
	return 0;
}
#define W(x) (uint64_t)(uintptr_t)(x)
#define NOTE(name, ...) uint64_t w_[] = {__VA_ARGS__}; int r_ = note(name, sizeof w_ / sizeof *w_, w_); if (r_) return r_
typedef void *H;
#ifndef VERSION
#define VERSION 13000
#endif

// The driver.
int cuInit(unsigned f) { NOTE("cuInit", f); return 0; }
int cuGetErrorName(int code, const char **name) { *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OTHER"; return 0; }
int cuDriverGetVersion(int *v) { *v = VERSION; return 0; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *dev, int i) { *dev = i + 40; return 0; }
#ifdef HOLLOW
int cuDeviceGetName(char *name, int len, int dev) { snprintf(name, len, "Hollow H200"); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int dev) { *bytes = MEMORY; return 0; }
#else
int cuDeviceGetName(char *name, int len, int dev) { snprintf(name, len, "Fake %d", dev); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int dev) { *bytes = 5ull << 33; return 0; }
#endif
int cuDeviceGetAttribute(int *v, int attr, int dev) {
	*v = attr * 1000 + dev;
#ifdef CAPABILITY
	if (attr == 75) *v = CAPABILITY / 10;
	if (attr == 76) *v = CAPABILITY % 10;
#endif
#ifdef HOLLOW
	if (attr == 16) *v = 132;
	if (attr == 97) *v = 227 << 10;
#endif
	return 0;
}
int cuDevicePrimaryCtxRetain(H *c, int dev) { NOTE("cuDevicePrimaryCtxRetain", dev); *c = (H)0x1111222233334444; return 0; }
int cuDevicePrimaryCtxRelease_v2(int dev) { NOTE("cuDevicePrimaryCtxRelease_v2", dev); return 0; }
int cuCtxSetCurrent(H c) { NOTE("cuCtxSetCurrent", W(c)); return 0; }
#ifdef HOLLOW
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = *total = MEMORY; return 0; }
int cuMemAlloc_v2(uint64_t *p, size_t bytes) { *p = W(calloc(1, bytes)); return *p ? 0 : 2; }
int cuMemFree_v2(uint64_t p) { free((void *)p); return 0; }
int cuMemHostAlloc(void **p, size_t bytes, unsigned f) { *p = calloc(1, bytes); return *p ? 0 : 2; }
int cuMemFreeHost(void *p) { free(p); return 0; }
int cuMemcpyHtoDAsync_v2(uint64_t d, const void *h, size_t n, H s) { memcpy((void *)d, h, n); return 0; }
int cuMemcpyDtoHAsync_v2(void *h, uint64_t d, size_t n, H s) { memcpy(h, (void *)d, n); return 0; }
int cuMemcpyAsync(uint64_t d, uint64_t f, size_t n, H s) { memmove((void *)d, (void *)f, n); return 0; }
int cuMemsetD8Async(uint64_t d, unsigned char v, size_t n, H s) { memset((void *)d, v, n); return 0; }
#else
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = 3ull << 32; *total = 5ull << 33; return 0; }
int cuMemAlloc_v2(uint64_t *p, size_t bytes) { NOTE("cuMemAlloc_v2", bytes); *p = 0x7f0000001000; return 0; }
int cuMemFree_v2(uint64_t p) { NOTE("cuMemFree_v2", p); return 0; }
static char pinned[4096];
int cuMemHostAlloc(void **p, size_t bytes, unsigned f) { NOTE("cuMemHostAlloc", bytes, f); *p = pinned; memset(pinned, 7, sizeof pinned); return 0; }
int cuMemFreeHost(void *p) { NOTE("cuMemFreeHost", p == pinned); return 0; }
int cuMemcpyHtoDAsync_v2(uint64_t d, const void *h, size_t n, H s) { NOTE("cuMemcpyHtoDAsync_v2", d, W((char *)h - pinned), n, W(s)); return 0; }
int cuMemcpyDtoHAsync_v2(void *h, uint64_t d, size_t n, H s) { NOTE("cuMemcpyDtoHAsync_v2", W((char *)h - pinned), d, n, W(s)); return 0; }
int cuMemcpyAsync(uint64_t d, uint64_t f, size_t n, H s) { NOTE("cuMemcpyAsync", d, f, n, W(s)); return 0; }
int cuMemsetD8Async(uint64_t d, unsigned char v, size_t n, H s) { NOTE("cuMemsetD8Async", d, v, n, W(s)); return 0; }
#endif
int cuStreamCreate(H *s, unsigned f) { NOTE("cuStreamCreate", f); *s = (H)0x5555; return 0; }
int cuStreamDestroy_v2(H s) { NOTE("cuStreamDestroy_v2", W(s)); return 0; }
int cuStreamSynchronize(H s) { NOTE("cuStreamSynchronize", W(s)); return 0; }
int cuStreamWaitEvent(H s, H e, unsigned f) { NOTE("cuStreamWaitEvent", W(s), W(e), f); return 0; }
#ifdef HOLLOW
int cuEventCreate(H *e, unsigned f) { *e = calloc(1, sizeof(struct timespec)); return 0; }
int cuEventDestroy_v2(H e) { free(e); return 0; }
int cuEventRecord(H e, H s) { clock_gettime(CLOCK_MONOTONIC, e); return 0; }
#else
static uint64_t events = 0x6660;
int cuEventCreate(H *e, unsigned f) { NOTE("cuEventCreate", f); *e = (H)++events; return 0; }
int cuEventDestroy_v2(H e) { NOTE("cuEventDestroy_v2", W(e)); return 0; }
int cuEventRecord(H e, H s) { NOTE("cuEventRecord", W(e), W(s)); return 0; }
#endif
int cuEventQuery(H e) { NOTE("cuEventQuery", W(e)); return 0; }
#ifdef HOLLOW
int cuEventElapsedTime(float *ms, H a, H b) {
	struct timespec *x = a, *y = b;
	*ms = 1e3f * (y->tv_sec - x->tv_sec) + 1e-6f * (y->tv_nsec - x->tv_nsec) + 1e-4f;
	return 0;
}
#else
static float times[] = {9, 4, 3, 5, 9, 2, 1, 2, 9, 7, 7, 7}; // of three algorithms: warm-up and three
static int timed, slower = 1;
int fake_slower(int by) { slower = by, timed = 0; return 0; }
int cuEventElapsedTime(float *ms, H a, H b) { NOTE("cuEventElapsedTime", W(b) - W(a)); *ms = slower * times[timed++ % 12]; return 0; }
#endif
int cuModuleLoadData(H *m, const void *image) { NOTE("cuModuleLoadData", *(const unsigned char *)image); *m = (H)0x8888; return 0; }
int cuModuleUnload(H m) { NOTE("cuModuleUnload", W(m)); return 0; }
int cuModuleGetFunction(H *f, H m, const char *name) { NOTE("cuModuleGetFunction", W(m), strlen(name)); *f = (H)0x9999; return 0; }
int cuFuncGetAttribute(int *v, int a, H f) { NOTE("cuFuncGetAttribute", a, W(f)); *v = 77; return 0; }
int cuFuncSetAttribute(H f, int a, int v) { NOTE("cuFuncSetAttribute", W(f), a, v); return 0; }
int cuLaunchKernel(H f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, H s, void **params, void **extra) {
#ifdef HOLLOW
	return 0;
#endif
	// Parameters as the function declares them: an address, an int, a float and a long.
	float x;
	memcpy(&x, params[2], 4);
	NOTE("cuLaunchKernel", W(f), gx, gy, gz, bx, by, bz, shared, W(s), *(uint64_t *)params[0], *(unsigned *)params[1], (uint64_t)(x * 4), *(uint64_t *)params[3], W(extra));
	return 0;
}
int cuStreamBeginCapture_v2(H s, int mode) { NOTE("cuStreamBeginCapture_v2", W(s), mode); return 0; }
int cuStreamEndCapture(H s, H *g) { NOTE("cuStreamEndCapture", W(s)); *g = (H)0xaaaa; return 0; }
int cuGraphDestroy(H g) { NOTE("cuGraphDestroy", W(g)); return 0; }
int cuGraphInstantiateWithFlags(H *e, H g, unsigned long long f) { NOTE("cuGraphInstantiateWithFlags", W(g), f); *e = (H)0xbbbb; return 0; }
int cuGraphLaunch(H e, H s) { NOTE("cuGraphLaunch", W(e), W(s)); return 0; }
int cuGraphExecDestroy(H e) { NOTE("cuGraphExecDestroy", W(e)); return 0; }

// NVRTC. The machine code is the option and the name; a source that says "wrong" fails, and sm_999 is not known.
static char code[256];
static const char *log_text = "";
int nvrtcVersion(int *major, int *minor) { *major = VERSION / 1000; *minor = VERSION % 1000 / 10; return 0; }
int nvrtcCreateProgram(H *p, const char *src, const char *name, int n, const char **headers, const char **includes) {
	snprintf(code, sizeof code, "%s|", name);
	log_text = strstr(src, "wrong") ? "line 1: wrong" : "";
	NOTE("nvrtcCreateProgram", strlen(src), n, W(headers), W(includes));
	*p = (H)0xcccc;
	return 0;
}
int nvrtcCompileProgram(H p, int n, const char **options) {
	for (int i = 0; i < n; i++) strcat(strcat(code, options[i]), ";");
	NOTE("nvrtcCompileProgram", W(p), n);
	if (strstr(code, "sm_999")) {
		log_text = "invalid value";
		return 5;
	}
#ifdef BUILTINS
	if (!dlopen(BUILTINS, RTLD_NOW)) return 7;
#endif
	return *log_text ? 6 : 0;
}
int nvrtcGetProgramLogSize(H p, size_t *n) { *n = strlen(log_text) + 1; return 0; }
int nvrtcGetProgramLog(H p, char *log) { strcpy(log, log_text); return 0; }
int nvrtcGetCUBINSize(H p, size_t *n) { *n = strlen(code); return 0; }
int nvrtcGetCUBIN(H p, char *out) { memcpy(out, code, strlen(code)); return 0; }
int nvrtcDestroyProgram(H *p) { NOTE("nvrtcDestroyProgram", W(*p)); return 0; }
const char *nvrtcGetErrorString(int code) { return code == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR"; }

// cuBLASLt.
size_t cublasLtGetVersion(void) { return VERSION * 10 + 103; }
int cublasLtCreate(H *h) { NOTE("cublasLtCreate", 0); *h = (H)0xd0; return 0; }
int cublasLtDestroy(H h) { NOTE("cublasLtDestroy", W(h)); return 0; }
int cublasLtMatmulDescCreate(H *d, int compute, int scale) { NOTE("cublasLtMatmulDescCreate", compute, scale); *d = (H)0xd1; return 0; }
int cublasLtMatmulDescSetAttribute(H d, int attr, const void *v, size_t n) { NOTE("cublasLtMatmulDescSetAttribute", W(d), attr, *(int *)v, n); return 0; }
int cublasLtMatmulDescDestroy(H d) { NOTE("cublasLtMatmulDescDestroy", W(d)); return 0; }
static uint64_t layouts;
int cublasLtMatrixLayoutCreate(H *l, int type, uint64_t rows, uint64_t cols, int64_t ld) { NOTE("cublasLtMatrixLayoutCreate", type, rows, cols, ld); *l = (H)(0xe0 + layouts++ % 3); return 0; }
int cublasLtMatrixLayoutDestroy(H l) { NOTE("cublasLtMatrixLayoutDestroy", W(l)); return 0; }
int cublasLtMatmulPreferenceCreate(H *p) { NOTE("cublasLtMatmulPreferenceCreate", 0); *p = (H)0xf0; return 0; }
int cublasLtMatmulPreferenceSetAttribute(H p, int attr, const void *v, size_t n) { NOTE("cublasLtMatmulPreferenceSetAttribute", W(p), attr, n == 8 ? *(uint64_t *)v : *(uint32_t *)v, n); return 0; }
int cublasLtMatmulPreferenceDestroy(H p) { NOTE("cublasLtMatmulPreferenceDestroy", W(p)); return 0; }
struct algo { uint64_t data[8]; };
struct result { struct algo algo; size_t workspace; int state; float waves; int reserved[4]; };
static int invalid = -1; // the candidate that is none
int fake_invalid(int i) { invalid = i; return 0; }
int cublasLtMatmulAlgoGetHeuristic(H h, H d, H a, H b, H c, H e, H pref, int want, struct result *r, int *n) {
	NOTE("cublasLtMatmulAlgoGetHeuristic", W(h), W(d), W(a), W(b), W(c), W(e), W(pref), want);
	for (int i = 0; i < 3; i++) for (int j = 0; j < 8; j++) r[i].algo.data[j] = 100 * (i + 1) + j;
	if (invalid >= 0) r[invalid].state = 15;
	*n = 3;
	return 0;
}
int cublasLtMatmul(H h, H d, const void *alpha, const void *a, H la, const void *b, H lb, const void *beta, const void *c, H lc, void *e, H le, const struct algo *algo, void *workspace, size_t bytes, H s) {
	NOTE("cublasLtMatmul", W(h), W(d), (uint64_t)*(float *)alpha, W(a), W(la), W(b), W(lb), (uint64_t)*(float *)beta, W(c), W(lc), W(e), W(le), algo->data[0], algo->data[7], W(workspace), bytes, W(s));
	return 0;
}
const char *cublasLtGetStatusString(int code) { return code == 15 ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS"; }

// NCCL.
typedef struct { char bytes[128]; } ID;
int ncclGetVersion(int *v) { *v = VERSION >= 12000 ? 22809 : 21000; return 0; }
int ncclGetUniqueId(ID *id) { for (int i = 0; i < 128; i++) id->bytes[i] = i * 3; return 0; }
int ncclCommInitRank(H *c, int n, ID id, int rank) {
	uint64_t sum = 0;
	for (int i = 0; i < 128; i++) sum = sum * 31 + (unsigned char)id.bytes[i];
	NOTE("ncclCommInitRank", n, sum, rank);
	*c = (H)0xcc00;
	return 0;
}
int ncclGroupStart(void) { NOTE("ncclGroupStart", 0); return 0; }
int ncclGroupEnd(void) { NOTE("ncclGroupEnd", 0); return 0; }
int ncclAllReduce(const void *s, void *r, size_t n, int t, int op, H c, H st) { NOTE("ncclAllReduce", W(s), W(r), n, t, op, W(c), W(st)); return 0; }
int ncclReduceScatter(const void *s, void *r, size_t n, int t, int op, H c, H st) { NOTE("ncclReduceScatter", W(s), W(r), n, t, op, W(c), W(st)); return 0; }
int ncclAllGather(const void *s, void *r, size_t n, int t, H c, H st) { NOTE("ncclAllGather", W(s), W(r), n, t, W(c), W(st)); return 0; }
int ncclReduce(const void *s, void *r, size_t n, int t, int op, int root, H c, H st) { NOTE("ncclReduce", W(s), W(r), n, t, op, root, W(c), W(st)); return 0; }
int ncclSend(const void *p, size_t n, int t, int peer, H c, H st) { NOTE("ncclSend", W(p), n, t, peer, W(c), W(st)); return 0; }
int ncclRecv(void *p, size_t n, int t, int peer, H c, H st) { NOTE("ncclRecv", W(p), n, t, peer, W(c), W(st)); return 0; }
static int async_error;
int fake_async(int code) { async_error = code; return 0; }
int ncclCommGetAsyncError(H c, int *e) { NOTE("ncclCommGetAsyncError", W(c)); *e = async_error; return 0; }
int ncclCommAbort(H c) { NOTE("ncclCommAbort", W(c)); return 0; }
int ncclCommDestroy(H c) { NOTE("ncclCommDestroy", W(c)); return 0; }
const char *ncclGetErrorString(int code) { return code == 6 ? "remote process exited or there was a network error" : "unhandled error"; }
