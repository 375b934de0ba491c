// What the programs need of the device, with all inline assembly. A shim for tests defines the same
// names for the CPU, so no other file of this package may name a register, a barrier or an
// instruction.

#ifdef __clang__ // without CUDA's headers, clang knows only the attributes
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __cvta_generic_to_shared(p) ((unsigned long long)(__attribute__((address_space(3))) const void*)(p))
extern "C" __device__ float expf(float), logf(float), tanhf(float), erff(float), sqrtf(float), fmaxf(float, float);
extern "C" __device__ double pow(double, double), sqrt(double), rint(double), fmin(double, double), fmax(double, double);
extern "C" __device__ void sincos(double, double*, double*);
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE __device__ __forceinline__

// SHARED declares the dynamic shared memory of a block. It starts at a multiple of 1024 bytes.
#define SHARED(type, name) \
	extern __shared__ __attribute__((aligned(1024))) u8 shared_memory[]; \
	type* name = (type*)shared_memory

#define SPECIAL(name, reg) \
	DEVICE int name() { \
		u32 x; \
		asm("mov.u32 %0, %%" reg ";" : "=r"(x)); \
		return (int)x; \
	}
SPECIAL(thread, "tid.x")
SPECIAL(threads, "ntid.x")
SPECIAL(block_x, "ctaid.x")
SPECIAL(block_y, "ctaid.y")
SPECIAL(block_z, "ctaid.z")
SPECIAL(blocks_x, "nctaid.x")
#undef SPECIAL

// group is the number of the thread's four warps in the block. It is read anew at each use, so that
// it takes no register meanwhile.
DEVICE int group() {
	u32 x;
	asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
	return (int)x / 128;
}

// sync_block waits for all threads of the block, sync_warp for those of the warp.
DEVICE void sync_block() { asm volatile("bar.sync 0;" ::: "memory"); }
DEVICE void sync_warp() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

// shuffle_xor returns x of the lane whose number differs in the bits of mask. All lanes of a warp
// call it.
DEVICE float shuffle_xor(float x, int mask) {
	float y;
	asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(y) : "f"(x), "r"(mask));
	return y;
}

// ballot returns a word with one bit for each lane of the warp.
DEVICE u32 ballot(bool bit) {
	u32 y;
	asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff;}" : "=r"(y) : "r"((u32)bit));
	return y;
}

DEVICE int popcount(u32 x) {
	u32 y;
	asm("popc.b32 %0, %1;" : "=r"(y) : "r"(x));
	return (int)y;
}

DEVICE u32 as_bits(float x) {
	u32 y;
	asm("mov.b32 %0, %1;" : "=r"(y) : "f"(x));
	return y;
}
DEVICE float as_float(u32 x) {
	float y;
	asm("mov.b32 %0, %1;" : "=f"(y) : "r"(x));
	return y;
}

// sum_of is a + b, rounded by itself: if a were a product, the compiler would fuse both into one
// operation.
DEVICE float sum_of(float a, float b) {
	float y;
	asm("add.rn.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
	return y;
}

// exp2_fast is 2^x within 2 units in the last place.
DEVICE float exp2_fast(float x) {
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

// reciprocal_fast is 1/x within a unit in the last place.
DEVICE float reciprocal_fast(float x) {
	float y;
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

// Two-byte types. pack rounds two numbers to nearest even; the first goes to the low half of the
// word.
struct bf16 { u16 bits; };
struct f16 { u16 bits; };

DEVICE u32 pack(bf16, float low, float high) {
	u32 y;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
	return y;
}
DEVICE u32 pack(f16, float low, float high) {
	u32 y;
	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
	return y;
}
DEVICE float wide(bf16 x) { return as_float((u32)x.bits << 16); }
DEVICE float wide(f16 x) {
	float y;
	asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
	return y;
}

// shared_address converts a pointer to a shared-memory address. Without assembly, so that the
// compiler can add constant offsets after the conversion.
DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// copy_async starts a copy of 16 bytes to shared memory, or stores zeros if not valid. copy_commit
// ends a group of copies. copy_wait waits until all but the last n groups of this thread have
// arrived.
DEVICE void copy_async(void* to, const void* from, bool valid) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int n> DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory"); }

// load_matrices loads four 8x8 matrices of two-byte elements. Lane 8*i+j gives the address of row j
// of matrix i. Each lane receives elements 2*(lane%4) and the next of row lane/4 of every matrix;
// with load_transposed, of the transposed matrix.
DEVICE void load_matrices(u32 (&r)[4], const void* row) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
		: "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void load_transposed(u32 (&r)[4], const void* row) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
		: "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

// mma adds the product of a[16,16] and b[16,8] to c[16,8]. The PTX manual says how each is spread
// over a warp.
#define MMA(type, name) \
	DEVICE void mma(type, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { \
		asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
			: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
			: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)); \
	}
MMA(bf16, "bf16")
MMA(f16, "f16")
#undef MMA

// On Hopper the four warps of a warpgroup multiply together, and read operands from tiles in shared
// memory. A tile starts at a multiple of 1024 bytes. It has rows of 64 elements in one panel, or of
// 128 in two, and its chunks lie as place has them: of 8 rows first one panel, then the other. Of
// rows of a and c, a warp has 16, spread as for mma.
//
// grouped_mma starts to add to c[64,64] the product of a[64,16], in registers, and b[16,64]. Rows of
// b are rows of the tile from 16*k on, columns of b those of the panel whose accumulators start at
// first. The registers of a must have been written since the product before: ptxas 13.0 was seen to
// use others' registers for an operand that stays the same in a loop. grouped_mma_of_tiles starts to
// set c[64,8*n8] to the product of a[64,16] and b[16,8*n8], or to add it. Rows of a and columns of b
// are the rows of two tiles, their columns from 16*k on.
//
// Products started after grouped_begin and before grouped_end are a group. grouped_wait waits until
// all but the last n groups are done. Meanwhile the tiles and the registers of a and c must not
// change, and c must not be read: settle tells so to the compiler, after the wait.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
const bool warpgroups = true;
// operand describes 16 columns of all rows of a tile, or if by_rows is set 16 rows of a panel: where
// they start, how far apart 8 rows are, and that chunks are permuted in 128 bytes. Addresses count
// 16 bytes.
template <bool by_rows, int panels> DEVICE u64 operand(const void* tile, int k, int panel) {
	u64 whole = (shared_address(tile) & 0x3ffff) >> 4 | (u64)1 << 16 | (u64)(1024 * panels >> 4) << 32 | (u64)1 << 62;
	return whole + (by_rows ? k * 2048 * panels + panel * 1024 : k / 4 * 1024 + k % 4 * 32) / 16;
}
#define GROUPED_MMA(type, name) \
	template <int panels, int first, int n8> \
	DEVICE void grouped_mma(type, float (&c)[n8][4], const u32 (&a)[4], const type* tile, int k) { \
		asm volatile("{.reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " {" \
			"%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
			"%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
			"}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;}" \
			: "+f"(c[first + 0][0]), "+f"(c[first + 0][1]), "+f"(c[first + 0][2]), "+f"(c[first + 0][3]), \
			  "+f"(c[first + 1][0]), "+f"(c[first + 1][1]), "+f"(c[first + 1][2]), "+f"(c[first + 1][3]), \
			  "+f"(c[first + 2][0]), "+f"(c[first + 2][1]), "+f"(c[first + 2][2]), "+f"(c[first + 2][3]), \
			  "+f"(c[first + 3][0]), "+f"(c[first + 3][1]), "+f"(c[first + 3][2]), "+f"(c[first + 3][3]), \
			  "+f"(c[first + 4][0]), "+f"(c[first + 4][1]), "+f"(c[first + 4][2]), "+f"(c[first + 4][3]), \
			  "+f"(c[first + 5][0]), "+f"(c[first + 5][1]), "+f"(c[first + 5][2]), "+f"(c[first + 5][3]), \
			  "+f"(c[first + 6][0]), "+f"(c[first + 6][1]), "+f"(c[first + 6][2]), "+f"(c[first + 6][3]), \
			  "+f"(c[first + 7][0]), "+f"(c[first + 7][1]), "+f"(c[first + 7][2]), "+f"(c[first + 7][3]) \
			: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(operand<true, panels>(tile, k, first / 8))); \
	} \
	template <int panels> DEVICE void grouped_mma_of_tiles(float (&c)[8][4], const type* a, const type* b, int k, bool add) { \
		asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " {" \
			"%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
			"%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
			"}, %32, %33, p, 1, 1, 0, 0;}" \
			: "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), \
			  "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]), \
			  "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), \
			  "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), \
			  "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), \
			  "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), \
			  "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), \
			  "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]) \
			: "l"(operand<false, panels>(a, k, 0)), "l"(operand<false, panels>(b, k, 0)), "r"((int)add)); \
	} \
	template <int panels> DEVICE void grouped_mma_of_tiles(float (&c)[4][4], const type* a, const type* b, int k, bool add) { \
		asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32." name "." name " {" \
			"%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
			"}, %16, %17, p, 1, 1, 0, 0;}" \
			: "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), \
			  "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]), \
			  "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), \
			  "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]) \
			: "l"(operand<false, panels>(a, k, 0)), "l"(operand<false, panels>(b, k, 0)), "r"((int)add)); \
	}
GROUPED_MMA(bf16, "bf16")
GROUPED_MMA(f16, "f16")
#undef GROUPED_MMA
DEVICE void grouped_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void grouped_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int n> DEVICE void grouped_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory"); }
// show_copies makes the copies that have arrived, and other stores to shared memory by this thread,
// visible to products that start after the next barrier.
DEVICE void show_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#else
[[maybe_unused]] const bool warpgroups = false;
template <int panels, int first, int n8, class H> DEVICE void grouped_mma(H, float (&)[n8][4], const u32 (&)[4], const H*, int) {}
template <int panels, int n8, class H> DEVICE void grouped_mma_of_tiles(float (&)[n8][4], const H*, const H*, int, bool) {}
DEVICE void grouped_begin() {}
DEVICE void grouped_end() {}
template <int n> DEVICE void grouped_wait() {}
DEVICE void show_copies() {}
#endif
template <int n, int m> DEVICE void settle(float (&c)[n][m]) {
#pragma unroll
	for (int i = 0; i < n * m; i++) asm volatile("" : "+f"(c[i / m][i % m])::"memory");
}
template <int n, int m> DEVICE void settle(u32 (&a)[n][m]) {
#pragma unroll
	for (int i = 0; i < n * m; i++) asm volatile("" : "+r"(a[i / m][i % m])::"memory");
}
