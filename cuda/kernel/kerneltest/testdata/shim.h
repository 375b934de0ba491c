// The definitions of primitives.cu for the CPU. A thread is a fiber with its own stack. Fibers
// switch at barriers and at operations of whole warps. Asynchronous copies happen as late as a
// device may do them.
#pragma once
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define __device__
#define __global__
#define __shared__ static thread_local // so that the worker knows where all of it lies
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define DEVICE __device__ __forceinline__
#define SHARED(type, name) type* name = (type*)machine.shared

// Group is threads that wait for each other at a barrier.
struct Group {
	int arrived = 0;
	const void* place = nullptr; // code address of the barrier where the first one arrived
	u64 turn = 0;
};

struct Exchange { // what the lanes of a warp exchange, double-buffered by turn
	u64 word[2][32];
};

typedef float Row __attribute__((vector_size(32)));

struct Matrices { // the operands of a warp's mma, of which the last lane to arrive makes the result
	float a[16][16];
	Row b[16], c[16];

	void multiply() {
		for (int i = 0; i < 16; i++) {
			Row sum = c[i];
			for (int k = 0; k < 16; k++) sum += a[i][k] * b[k];
			c[i] = sum;
		}
	}
};

struct Machine {
	int thread, threads, block[3], blocks[3];
	void* shared;
	Group block_group, warps[32];
	Exchange exchange[32];
	Matrices matrices[32][2]; // of the warps, double-buffered by turn
	u32 synced[1024][2]; // how often each thread has left sync_block and sync_warp
};
extern Machine machine;

// wait returns when size threads have called it for the group. Meanwhile other fibers run.
void wait(Group& group, int size);

inline int thread() { return machine.thread; }
inline int group() { return machine.thread / 128; }
inline int threads() { return machine.threads; }
inline int block_x() { return machine.block[0]; }
inline int block_y() { return machine.block[1]; }
inline int block_z() { return machine.block[2]; }
inline int blocks_x() { return machine.blocks[0]; }

// Asynchronous copies of a thread, in groups.
struct Copies {
	struct Copy {
		void* to;
		const void* from;
	};
	std::vector<std::vector<Copy>> groups{{}};
	enum { arrived, fenced, shown } last = shown; // what has arrived is visible to products of warpgroups after a fence and then a barrier
};
Copies& copies();

inline void sync_block() {
	wait(machine.block_group, machine.threads);
	machine.synced[machine.thread][0]++;
	if (copies().last == Copies::fenced) copies().last = Copies::shown;
}
inline void sync_warp() {
	wait(machine.warps[machine.thread / 32], 32);
	machine.synced[machine.thread][1]++;
}
// sync_lanes is for what a device does without ordering the warp's accesses to memory.
inline void sync_lanes() { wait(machine.warps[machine.thread / 32], 32); }

// touch tells a watched worker of an access that it does not see, or not where it may happen first.
#ifdef WATCHED
void touch(const void* at, int bytes, bool write);
#else
inline void touch(const void*, int, bool) {}
#endif

// exchange shows a word to the warp and returns those of all lanes.
inline const u64* exchange(u64 word) {
	int warp = machine.thread / 32;
	auto& turn = machine.exchange[warp].word[machine.warps[warp].turn % 2];
	turn[machine.thread % 32] = word;
	wait(machine.warps[warp], 32);
	return turn;
}

inline u32 as_bits(float x) {
	u32 y;
	memcpy(&y, &x, 4);
	return y;
}
inline float as_float(u32 x) {
	float y;
	memcpy(&y, &x, 4);
	return y;
}

inline float shuffle_xor(float x, int mask) {
	return as_float((u32)exchange(as_bits(x))[machine.thread % 32 ^ mask]);
}
inline u32 ballot(bool bit) {
	auto all = exchange(bit);
	u32 bits = 0;
	for (int i = 0; i < 32; i++) bits |= (u32)all[i] << i;
	return bits;
}
inline int popcount(u32 x) { return __builtin_popcount(x); }
inline float sum_of(float a, float b) { return a + b; }
inline float exp2_fast(float x) { return exp2f(x); }
inline float reciprocal_fast(float x) { return 1 / x; }

struct bf16 { u16 bits; };
struct f16 { u16 bits; };

inline u16 round_to(bf16, float x) {
	u32 u = as_bits(x);
	if (x != x) return 0x7fff;
	return (u16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
inline u16 round_to(f16, float x) {
	_Float16 h = (_Float16)x;
	u16 bits;
	memcpy(&bits, &h, 2);
	return bits;
}
template <class H> inline u32 pack(H, float low, float high) { return round_to(H(), low) | (u32)round_to(H(), high) << 16; }
inline float wide(bf16 x) { return as_float((u32)x.bits << 16); }
inline float wide(f16 x) {
	_Float16 h;
	memcpy(&h, &x.bits, 2);
	return (float)h;
}

inline void copy_async(void* to, const void* from, bool valid) {
	if ((u64)to % 16 || (u64)from % 16 && valid) __builtin_trap();
	touch(to, 16, true); // a device may copy at once
	copies().groups.back().push_back({to, valid ? from : nullptr});
}
inline void copy_commit() { copies().groups.push_back({}); }
template <int n> void copy_wait() {
	auto& groups = copies().groups;
	while ((int)groups.size() - 1 > n) {
		for (auto& c : groups[0]) {
			if (c.from) memcpy(c.to, c.from, 16);
			else memset(c.to, 0, 16);
			copies().last = Copies::arrived;
		}
		groups.erase(groups.begin());
	}
}

inline void load_matrices(u32 (&r)[4], const void* row, bool transposed) {
	if ((u64)row % 16) __builtin_trap();
	touch(row, 16, false);
	auto rows = exchange((u64)row);
	int lane = machine.thread % 32, i = lane / 4, j = lane % 4 * 2;
	for (int m = 0; m < 4; m++) {
		auto at = [&](int row, int column) { return (u32)((const u16*)rows[8 * m + row])[column]; };
		r[m] = transposed ? at(j, i) | at(j + 1, i) << 16 : at(i, j) | at(i, j + 1) << 16;
	}
	sync_lanes(); // nobody may overwrite what others still read
}
inline void load_matrices(u32 (&r)[4], const void* row) { load_matrices(r, row, false); }
inline void load_transposed(u32 (&r)[4], const void* row) { load_matrices(r, row, true); }

// mma: element (row, column) of a is in lane row%8*4 + column%8/2, word row/8 + column/8*2, half column%2; of b (row, column) in
// lane column*4 + row%8/2, word row/8; of c in lane row%8*4 + column/2, word row/8*2 + column%2.
template <class H> void mma(H, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
	Group& warp = machine.warps[machine.thread / 32];
	Matrices& all = machine.matrices[machine.thread / 32][warp.turn % 2];
	const u32 b[2] = {b0, b1};
	int row = machine.thread % 32 / 4, pair = machine.thread % 4 * 2;
	for (int half = 0; half < 2; half++) {
		for (int i = 0; i < 4; i++) all.a[row + i % 2 * 8][pair + i / 2 * 8 + half] = wide(H{(u16)(a[i] >> 16 * half)});
		for (int i = 0; i < 2; i++) all.b[pair + 8 * i + half][row] = wide(H{(u16)(b[i] >> 16 * half)});
		for (int i = 0; i < 2; i++) all.c[row + 8 * i][pair + half] = c[2 * i + half];
	}
	if (warp.arrived == 31) all.multiply();
	wait(warp, 32);
	for (int n = 0; n < 4; n++) c[n] = all.c[row + n / 2 * 8][pair + n % 2];
}

// Products of warpgroups. They are done as late as a device may do them; until then their results
// are not numbers. All of a warp's lanes start and await the same products.
struct Product {
	float* c;
	int n8;
	float was[32]; // before the product, or before the first of those that were started
	bool first, add;
	std::function<void()> run;
};
struct Products {
	std::vector<std::vector<Product>> groups{{}};
	bool begun;
};
Products& products();
#ifdef WITHOUT_WARPGROUPS
const bool warpgroups = false;
#else
const bool warpgroups = true;
#endif

// element reads a tile as the device does: it adds the three bits of the address above 128 bytes to those above 16.
inline u32 element(const void* tile, int panels, int row, int column) {
	u64 byte = (u64)tile + row / 8 * 1024 * panels + column / 64 * 1024 + row % 8 * 128 + column % 64 * 2;
	return *(const u16*)(byte ^ (byte >> 7 & 7) << 4);
}

// start_product adds p, of c[64,8*n8], to the last group. p.run has the product.
inline void start_product(float (*c)[4], int n8, bool add, std::function<void()> run) {
	if (!products().begun || copies().last != Copies::shown) __builtin_trap(); // a device would read what was there before
	Product p{&c[0][0], n8, {}, true, add, run};
	for (auto& g : products().groups) {
		for (auto& other : g) p.first = p.first && other.c != p.c;
	}
	memcpy(p.was, c, n8 * sizeof *c);
	for (int i = 0; i < 4 * n8; i++) p.c[i] = NAN;
	products().groups.back().push_back(p);
}

template <int panels, int first, int n8, class H> void grouped_mma(H, float (&c)[n8][4], const u32 (&a)[4], const H* tile, int k) {
	if ((u64)tile % 1024) __builtin_trap();
	float(*to)[4] = c + first;
	std::vector<u32> left(a, a + 4);
	start_product(to, 8, true, [=] {
		const u32 a[4] = {left[0], left[1], left[2], left[3]};
		int lane = machine.thread % 32, row = 16 * k + lane % 4 * 2, column = 8 * first + lane / 4; // of b: see mma
		for (int n = 0; n < 8; n++) {
			u32 b[2];
			for (int i = 0; i < 2; i++) b[i] = element(tile, panels, row + 8 * i, column + 8 * n) | element(tile, panels, row + 8 * i + 1, column + 8 * n) << 16;
			mma(H(), *(float(*)[4])to[n], a, b[0], b[1]);
		}
		sync_lanes();
	});
}
template <int panels, int n8, class H> void grouped_mma_of_tiles(float (&c)[n8][4], const H* a, const H* b, int k, bool add) {
	if ((u64)a % 1024 || (u64)b % 1024) __builtin_trap();
	float(*to)[4] = c;
	start_product(to, n8, add, [=] {
		int lane = machine.thread % 32, group = machine.thread / 32 % 4 * 16, column = 16 * k + lane % 4 * 2;
		auto two = [&](const H* tile, int row, int column) { return element(tile, panels, row, column) | element(tile, panels, row, column + 1) << 16; };
		u32 left[4];
		for (int i = 0; i < 4; i++) left[i] = two(a, group + lane / 4 + i % 2 * 8, column + i / 2 * 8);
		for (int n = 0; n < n8; n++) mma(H(), *(float(*)[4])to[n], left, two(b, 8 * n + lane / 4, column), two(b, 8 * n + lane / 4, column + 8));
		sync_lanes();
	});
}
inline void grouped_begin() { products().begun = true; }
inline void grouped_end() { products().begun = false, products().groups.push_back({}); }
template <int n> void grouped_wait() {
	auto& groups = products().groups;
	while ((int)groups.size() - 1 > n) {
		for (auto& p : groups[0]) {
			if (p.first) memcpy(p.c, p.was, p.n8 * 4 * sizeof *p.c);
			if (!p.add) memset(p.c, 0, p.n8 * 4 * sizeof *p.c);
			p.run();
		}
		groups.erase(groups.begin());
	}
}
inline void show_copies() {
	if (copies().last == Copies::arrived) copies().last = Copies::fenced;
}
template <class X> void settle(X&) {}

// A device function, as the worker calls it.
struct Function {
	const char* name;
	std::vector<int> sizes; // of parameters
	void (*call)(void* function, const u64* args);
	void* function;
};
std::vector<Function>& functions();

template <class... A> struct Caller {
	template <class X> static X argument(const u64*& args) {
		X x;
		memcpy(&x, args, sizeof x);
		args += (sizeof x + 7) / 8;
		return x;
	}
	static void call(void* function, const u64* args) {
		struct List { // braces take arguments in order
			void (*f)(A...);
			List(void (*f)(A...), A... a) { f(a...); }
		};
		List{(void (*)(A...))function, argument<A>(args)...};
	}
};
template <class... A> bool offer(const char* name, void (*f)(A...)) {
	std::vector<int> sizes;
	for (int n : {(int)sizeof(A)...}) { // a struct is words
		for (; n > 8; n -= 8) sizes.push_back(8);
		sizes.push_back(n);
	}
	functions().push_back({name, sizes, Caller<A...>::call, (void*)f});
	return true;
}
