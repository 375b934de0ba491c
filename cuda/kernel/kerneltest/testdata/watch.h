// A watched worker sees every access of device functions to memory: the compiler puts the calls before them that it has for
// finding data races. It ends at an access that no device would do right:
//
//   - two to the same memory by different threads, of which one writes, with no barrier of the block between them, and none
//     of their warp; or by different blocks of a launch;
//   - one outside of the tensors that a launch is given, or a write to one that it only reads;
//   - one beyond the block's shared memory.
//
// So, unlike by its results, a kernel is found out whatever order its threads run in.
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

#include "shim.h"

struct Range {
	u64 at, bytes;
	bool writes;
};

struct Watch {
	// Access is the last one to two bytes. If several threads have read them since the last barrier, it is by
	// a number that stands for them.
	struct Access {
		u64 block : 28, by : 11, barriers : 17, warp_barriers : 8;
	};
	enum { warps = 1024, block = warps + 32, blocks };
	struct Cell {
		Access write, read;
	};
	struct Region {
		const char* name;
		u64 at, bytes, usable;
		bool shared;
		Cell* cells;
	};
	Range own; // stacks of the threads
	std::vector<Region> regions;
	std::vector<Range> allowed; // of global memory; none allows all of it
	size_t last = 0; // of those, the one that was accessed last
	u64 running = 0, first = 1; // numbers of the block, and of the first one of the launch
	const char* function = "";

	Region& add(const char* name, void* at, u64 bytes, bool shared) {
		auto cells = (Cell*)mmap(nullptr, (bytes + 1) / 2 * sizeof(Cell), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (cells == MAP_FAILED) perror("memory for the watch"), exit(3);
		regions.push_back({name, (u64)at, bytes, bytes, shared, cells});
		return regions.back();
	}
	void begin_launch(const char* name, std::vector<Range> may) {
		function = name, first = running + 1, allowed = may, last = 0;
	}
	void begin_block() {
		if (++running >> 28) fail("too many blocks for the watch");
	}

	[[noreturn]] void fail(const char* what, const Region* r = nullptr, u64 offset = 0, const Access* other = nullptr) {
		fprintf(stderr, "%s: thread %d of block %d,%d,%d %s", function, machine.thread, machine.block[0], machine.block[1], machine.block[2], what);
		if (r) fprintf(stderr, ", byte %llu of %s memory", offset, r->name);
		if (other && other->block != running) fprintf(stderr, ", by another block");
		else if (other && other->by < warps) fprintf(stderr, ", by thread %d", (int)other->by);
		else if (other) fprintf(stderr, ", by several threads");
		fprintf(stderr, "\n");
		exit(3);
	}

	Access now() const {
		auto& synced = machine.synced[machine.thread];
		return {running, (u64)machine.thread, synced[0], synced[1]};
	}
	static int warp_of(const Access& a) { return a.by < warps ? a.by / 32 : a.by < block ? (int)a.by - warps : -1; }
	// before reports whether an access is ordered before what the running thread does now.
	bool before(const Access& a, const Access& me, bool shared) const {
		if (a.block != me.block) return shared || a.block < first;
		if (a.by == blocks) return false;
		return a.by == me.by || a.barriers < me.barriers || warp_of(a) == warp_of(me) && a.warp_barriers < me.warp_barriers;
	}
	static bool same(const Access& a, const Access& b) { return !memcmp(&a, &b, sizeof a); }
	void access(Region& r, u64 offset, const Access& me, bool write) {
		Cell& c = r.cells[offset / 2];
		if (!write && (same(c.read, me) || same(c.read, {me.block, block, me.barriers, 0}))) return; // nobody has written since
		if (!before(c.write, me, r.shared)) fail(write ? "writes what is written meanwhile" : "reads what is written meanwhile", &r, offset, &c.write);
		bool alone = before(c.read, me, r.shared);
		if (write) {
			if (!alone) fail("writes what is read meanwhile", &r, offset, &c.read);
			c.write = me;
		} else if (alone) {
			c.read = me;
		} else if (c.read.block != me.block || c.read.by == blocks) {
			c.read = {me.block, blocks, 0, 0};
		} else if (warp_of(c.read) == warp_of(me)) {
			c.read = {me.block, (u64)warps + warp_of(me), me.barriers, me.warp_barriers};
		} else {
			c.read = {me.block, block, me.barriers, 0};
		}
	}
	bool may(u64 at, u64 bytes, bool write) {
		auto in = [&](const Range& r) { return at >= r.at && at + bytes <= r.at + r.bytes && (r.writes || !write); };
		if (allowed.empty() || in(allowed[last])) return true;
		last = std::find_if(allowed.begin(), allowed.end(), in) - allowed.begin();
		if (last < allowed.size()) return true;
		last = 0;
		return false;
	}
	void touch(const void* p, u64 bytes, bool write) {
		if ((u64)p - own.at < own.bytes) return;
		for (auto& r : regions) {
			u64 offset = (u64)p - r.at;
			if (offset >= r.bytes) continue;
			if (offset + bytes > r.usable) fail(write ? "writes beyond its memory" : "reads beyond its memory", &r, offset);
			if (!r.shared && !may(offset, bytes, write)) fail(write ? "writes what the launch has not as a result" : "reads what the launch is not given", &r, offset);
			const Access me = now();
			for (u64 i = offset / 2; i <= (offset + bytes - 1) / 2; i++) access(r, 2 * i, me, write);
			return;
		}
	}
};
extern Watch watch;
