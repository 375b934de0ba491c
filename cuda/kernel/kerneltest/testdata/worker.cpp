// Runs device functions on the CPU as its standard input says: see worker.go for the commands.
#include <cstdio>
#include <cstdlib>
#include <elf.h>
#include <string>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shim.h"
#include "watch.h"

Machine machine;

#ifdef WATCHED
Watch watch;

void touch(const void* at, int bytes, bool write) { watch.touch(at, bytes, write); }
#define SEE(bytes) \
	extern "C" void __tsan_read##bytes(void* at) { watch.touch(at, bytes, false); } \
	extern "C" void __tsan_write##bytes(void* at) { watch.touch(at, bytes, true); } \
	extern "C" void __tsan_unaligned_read##bytes(void* at) { watch.touch(at, bytes, false); } \
	extern "C" void __tsan_unaligned_write##bytes(void* at) { watch.touch(at, bytes, true); }
SEE(1)
SEE(2)
SEE(4)
SEE(8)
SEE(16)
extern "C" void __tsan_read_range(void* at, long bytes) { watch.touch(at, bytes, false); }
extern "C" void __tsan_write_range(void* at, long bytes) { watch.touch(at, bytes, true); }
extern "C" void __tsan_vptr_update(void*, void*) {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_init() {}
#endif

// statics returns the static shared memory of all functions, which is what this program has of its own for a thread.
Range statics() {
	auto headers = (const Elf64_Phdr*)getauxval(AT_PHDR);
	for (u64 i = 0; i < getauxval(AT_PHNUM); i++) {
		if (headers[i].p_type != PT_TLS) continue;
		u64 end, align = headers[i].p_align, bytes = (headers[i].p_memsz + align - 1) / align * align;
		asm("mov %%fs:0, %0" : "=r"(end));
		return {end - bytes, bytes, true};
	}
	return {};
}

std::vector<Function>& functions() {
	static std::vector<Function> all;
	return all;
}

// Fibers.

extern "C" void switch_stacks(void** save, void* load);
asm(R"(
.globl switch_stacks
switch_stacks:
	push %rbp
	push %rbx
	push %r12
	push %r13
	push %r14
	push %r15
	mov %rsp, (%rdi)
	mov %rsi, %rsp
	pop %r15
	pop %r14
	pop %r13
	pop %r12
	pop %rbx
	pop %rbp
	ret
)");

const int most = 1024, stack_bytes = 128 << 10;

struct Fiber {
	void* stack; // pointer to its top while it does not run
	const Group* group; // the group it waits for
	u64 turn;
	bool done;
	Copies copies;
	Products products;
};
Fiber fibers[most];
void* host; // stack of the scheduler
char* stacks;
int direction = 1, left;
const Function* running;
const u64* arguments;

Copies& copies() { return fibers[machine.thread].copies; }
Products& products() { return fibers[machine.thread].products; }

// next switches to a fiber that can run, or to the scheduler when all are done.
void next() {
	Fiber& me = fibers[machine.thread];
	if (left == 0) {
		switch_stacks(&me.stack, host);
		return;
	}
	int at = machine.thread;
	for (int i = 0; i < machine.threads; i++) {
		at += direction;
		if (at >= machine.threads) at = 0;
		if (at < 0) at = machine.threads - 1;
		Fiber& f = fibers[at];
		if (f.done || f.group && f.group->turn == f.turn) continue;
		f.group = nullptr;
		if (at == machine.thread) return;
		machine.thread = at;
		switch_stacks(&me.stack, f.stack);
		return;
	}
	fprintf(stderr, "threads of %s wait for each other at different places\n", running->name);
	exit(3);
}

void wait(Group& group, int size) {
	const void* place = __builtin_return_address(0);
	if (group.arrived > 0 && group.place != place) { // for a warp this is undefined on a device
		fprintf(stderr, "threads of %s meet at different places\n", running->name);
		exit(3);
	}
	group.place = place;
	if (++group.arrived == size) {
		group.arrived = 0;
		group.turn++;
		return;
	}
	Fiber& me = fibers[machine.thread];
	me.group = &group;
	me.turn = group.turn;
	next();
}

void fiber_main() {
	running->call(running->function, arguments);
	if (fibers[machine.thread].copies.groups.size() > 1 || !fibers[machine.thread].copies.groups[0].empty()) {
		fprintf(stderr, "%s ends before its copies have arrived\n", running->name);
		exit(3);
	}
	if (fibers[machine.thread].products.groups.size() > 1 || !fibers[machine.thread].products.groups[0].empty()) {
		fprintf(stderr, "%s ends before its products are done\n", running->name);
		exit(3);
	}
	fibers[machine.thread].done = true;
	left--;
	next();
	abort();
}

void run_block() {
	machine.block_group = Group();
	for (auto& w : machine.warps) w = Group();
	memset(machine.synced, 0, sizeof machine.synced);
#ifdef WATCHED
	watch.begin_block();
#endif
	for (int i = 0; i < machine.threads; i++) {
		// Offset each stack within its page: otherwise the same variable of all threads would
		// compete for a few cache sets.
		void** top = (void**)(stacks + (size_t)(i + 1) * stack_bytes - i % 32 * 128) - 1;
		*top = nullptr; // as after a call, so the stack is aligned
		*--top = (void*)fiber_main;
		fibers[i].stack = top - 6;
		fibers[i].group = nullptr;
		fibers[i].done = false;
		fibers[i].copies.last = Copies::shown;
	}
	left = machine.threads;
	machine.thread = direction > 0 ? 0 : machine.threads - 1;
	switch_stacks(&host, fibers[machine.thread].stack);
}

// Commands.

template <class X> X read_one() {
	X x;
	if (fread(&x, sizeof x, 1, stdin) != 1) exit(0);
	return x;
}

void reply(const std::string& message) {
	u32 n = (u32)message.size();
	fwrite(&n, 4, 1, stdout);
	fwrite(message.data(), 1, n, stdout);
	fflush(stdout);
}

// launch: name, grid, block, shared memory, arguments and their sizes, and whether blocks and threads run in reverse.
std::string launch(char* shared_end, const std::vector<Range>& within) {
	std::string name(read_one<u32>(), 0);
	for (auto& c : name) c = read_one<char>();
	u32 grid[3], block[3];
	for (auto& n : grid) n = read_one<u32>();
	for (auto& n : block) n = read_one<u32>();
	u32 shared = read_one<u32>(), n = read_one<u32>();
	std::vector<u64> args(n);
	std::vector<int> sizes(n);
	for (auto& a : args) a = read_one<u64>();
	for (auto& s : sizes) s = read_one<u8>();
	bool reverse = read_one<u8>();

	running = nullptr;
	for (auto& f : functions()) {
		if (f.name == name) running = &f;
	}
	if (!running) return "no function " + name;
	if (running->sizes != sizes) return name + " has parameters of other sizes";
	if (block[1] != 1 || block[2] != 1 || block[0] > most || grid[1] > 65535 || grid[2] > 65535) return name + ": grid or block";
	arguments = args.data();
	direction = reverse ? -1 : 1;
	machine.threads = block[0];
	u64 all = (u64)grid[0] * grid[1] * grid[2];
	for (int d = 0; d < 3; d++) machine.blocks[d] = grid[d];
	const Range fixed = statics();
	u32 aligned = shared > 8 << 10 ? 1024 : 128; // large ones hold tiles
	machine.shared = shared_end - (shared + aligned - 1) / aligned * aligned;
#ifdef WATCHED
	watch.begin_launch(running->name, within);
	for (auto& r : watch.regions) {
		if (r.at <= (u64)machine.shared && (u64)machine.shared <= r.at + r.bytes) r.usable = (u64)machine.shared + shared - r.at;
	}
#endif
	for (u64 i = 0; i < all; i++) {
		u64 at = reverse ? all - 1 - i : i;
		machine.block[0] = at % grid[0], machine.block[1] = at / grid[0] % grid[1], machine.block[2] = at / grid[0] / grid[1];
		memset(machine.shared, 0xff, shared_end - (char*)machine.shared); // NaN
		memset((void*)fixed.at, 0xff, fixed.bytes);
		run_block();
	}
	return "";
}

int main() {
	const size_t arena_bytes = (size_t)1 << 32, shared_bytes = 256 << 10, page = 4096;
	auto reserve = [&](size_t bytes) { // with inaccessible pages before and after
		char* p = (char*)mmap(nullptr, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		mprotect(p + page, bytes, PROT_READ | PROT_WRITE);
		return p + page;
	};
	char *arena = reserve(arena_bytes), *shared = reserve(shared_bytes);
	stacks = reserve((size_t)most * stack_bytes);
#ifdef WATCHED
	watch.own = {(u64)stacks, (size_t)most * stack_bytes, true};
	watch.add("global", arena, arena_bytes, false);
	watch.add("dynamic shared", shared, shared_bytes, true);
	watch.add("static shared", (void*)statics().at, statics().bytes, true);
#endif
	std::vector<Range> within; // the tensors of the next launches, if they are told
	u64 base = (u64)arena;
	fwrite(&base, 8, 1, stdout);
	fflush(stdout);
	for (;;) {
		char command = read_one<char>();
		if (command == 'l') {
			reply(launch(shared + shared_bytes, within));
			continue;
		}
		if (command == 'a') {
			within.resize(read_one<u32>());
			for (auto& r : within) r.at = read_one<u64>(), r.bytes = read_one<u64>(), r.writes = read_one<u8>();
			continue;
		}
		u64 at = read_one<u64>(), n = read_one<u64>();
		if (at > arena_bytes || n > arena_bytes - at) return 4;
		if (command == 'w') {
			if (fread(arena + at, 1, n, stdin) != n) return 0;
		} else if (command == 'p') {
			memset(arena + at, 0xff, n);
		} else {
			fwrite(arena + at, 1, n, stdout);
			fflush(stdout);
		}
	}
}
