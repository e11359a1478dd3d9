// detector.h: bounds, initialisation and races, checked at each access.
//
// Two accesses are ordered by program order, by a block's barrier, by __syncwarp of their lanes,
// and between blocks only by this chain: writes; __threadfence; an atomic; an atomic of the other
// block at the same address; __threadfence (a volatile read needs none); reads.
#pragma once
#include "memory.h"
#include "scheduler.h"

namespace sim {

// ---- order between blocks --------------------------------------------------------------------

// What a thread's atomic publishes: all that was ordered before its last __threadfence, and what
// other threads of the block had fenced before it came after them.
struct Release {
  u32 block, block_base, warp_base, stamp;
  u16 thread;
  std::vector<u32> fences;  // by thread; empty if no other thread has fenced
};
// A release that a thread of the running block has read through an atomic.
struct Observation {
  Release release;
  u16 observer;
  u32 stamp;        // the observer's clock
  u32 fence_stamp;  // its clock at its next __threadfence; 0: none yet
};
struct Releases {
  std::unordered_map<u64, std::vector<Release>> released;       // by the atomic's address
  std::unordered_map<u32, std::vector<Observation>> observed;  // by the releasing block
};
extern Releases between;

// Whether thread `t` of this block comes after clock `stamp` of thread `other`.
inline bool after_in_block(u32 other, u32 stamp, int t) {
  if (int(other) == t || stamp < S.block_base) return true;
  if (int(other) / lanes != t / lanes) return false;
  const Warp& warp = warp_of(t);
  return stamp < warp.base || (warp.known && stamp < warp.known[t % lanes][other % lanes]);
}

inline bool covers(const Release& release, const Record& record) {
  if (record.stamp < release.block_base) return true;
  if (record.thread == release.thread) return record.stamp <= release.stamp;
  if (record.thread < release.fences.size() && record.stamp <= release.fences[record.thread]) {
    return true;
  }
  return record.thread / lanes == release.thread / lanes && record.stamp < release.warp_base;
}

// The fences of other threads that this thread comes after.
inline std::vector<u32> fences_before(int t) {
  std::vector<u32> found;
  for (int other = 0; other < S.thread_count && S.fences > 1; ++other) {
    const u32 stamp = S.threads[other].fence_stamp;
    if (other == t || !stamp || !after_in_block(u32(other), stamp, t)) continue;
    found.resize(size_t(S.thread_count));
    found[size_t(other)] = stamp;
  }
  return found;
}

// Acquired: the observer passed a fence after its atomic, and t comes after that fence; or t
// itself passed a fence after it came after the atomic.
inline bool acquired(const Observation& seen, int t) {
  const Thread& thread = S.threads[t];
  if (seen.fence_stamp && after_in_block(seen.observer, seen.fence_stamp, t)) return true;
  return thread.fence_stamp && seen.stamp < thread.fence_block_base;
}

inline bool after_block(const Record& record, int t, bool strong) {
  const auto found = between.observed.find(record.block);
  if (found == between.observed.end()) return false;
  for (const Observation& seen : found->second) {
    const bool visible = strong ? after_in_block(seen.observer, seen.stamp, t) : acquired(seen, t);
    if (visible && covers(seen.release, record)) return true;
  }
  return false;
}

inline bool ordered(const Record& record, int t, bool strong) {
  return record.block == S.block ? after_in_block(record.thread, record.stamp, t)
                                 : after_block(record, t, strong);
}

inline void note_fence() {
  Thread& t = me();
  t.fenced = true;
  S.fences++;
  t.fence_stamp = t.stamp;
  t.fence_block_base = S.block_base;
  t.fence_warp_base = warp_of(S.current).base;
  if (t.observed_unfenced) {
    for (auto& entry : between.observed) {
      for (Observation& seen : entry.second) {
        if (seen.observer == S.current && !seen.fence_stamp) seen.fence_stamp = t.stamp;
      }
    }
    t.observed_unfenced = false;
  }
  t.stamp = ++S.clock;  // later accesses are not covered by this fence
}

inline void observe(const Release& release) {
  std::vector<Observation>& seen = between.observed[release.block];
  for (const Observation& old : seen) {
    if (old.release.stamp >= release.stamp && old.release.thread == release.thread) return;
  }
  seen.push_back({release, u16(S.current), me().stamp, 0});
  me().observed_unfenced = true;
}

// A thread's newer release holds all that its older one at the same address held.
inline void publish(std::vector<Release>& releases, Release release) {
  for (Release& old : releases) {
    if (old.block == release.block && old.thread == release.thread) {
      old = std::move(release);
      return;
    }
  }
  releases.push_back(std::move(release));
}

// An atomic takes what others released at its address, and releases what the last fence of its
// own thread covered, with all that the thread had acquired.
inline void meet_at_atomic(u64 address) {
  if (between.released.empty() && !S.fences) return;
  std::vector<Release>& releases = between.released[address];
  for (const Release& release : releases) {
    if (release.block != S.block) observe(release);
  }
  std::vector<u32> fences = fences_before(S.current);
  if (!me().fenced && fences.empty()) return;
  for (const auto& entry : between.observed) {
    for (const Observation& seen : entry.second) {
      const bool known = std::any_of(releases.begin(), releases.end(), [&](const Release& old) {
        return old.block == seen.release.block && old.stamp >= seen.release.stamp;
      });
      if (!known && acquired(seen, S.current)) releases.push_back(seen.release);
    }
  }
  const Thread& t = me();
  publish(releases, {S.block, t.fence_block_base, t.fence_warp_base, t.fence_stamp,
                     u16(S.current), std::move(fences)});
}

// ---- one access ------------------------------------------------------------------------------

struct Access {
  u64 address, pc;
  u32 bytes;
  AccessKind kind;
  bool is_volatile;
  bool is_copy;  // a memcpy, which needs no alignment
};

inline Report access_report(Kind kind, const char* message, const Access& a, int region,
                            u64 offset) {
  Report r = new_report(kind, message, a.pc);
  r.region = region;
  r.offset = offset;
  r.bytes = a.bytes;
  r.access[0] = a.kind;
  return r;
}

[[noreturn]] inline void out_of_bounds(const char* message, const Access& a, int region,
                                       u64 offset) {
  file_report(access_report(OUT_OF_BOUNDS, message, a, region, offset));
  abort_launch();
}

inline void report_race(const Access& a, int region, u64 offset, const Record& other,
                        AccessKind other_kind) {
  const bool same_block = other.block == S.block;
  const bool same_warp = same_block && other.thread / lanes == S.current / lanes;
  Report r = access_report(RACE, same_warp ? "data race within a warp"
                                 : same_block ? "data race within a block"
                                              : "data race between blocks",
                           a, region, offset);
  r.block[1] = other.block - S.first_block;
  r.thread[1] = other.thread;
  r.access[1] = other_kind == WRITE && other.strong == 1 ? ATOMIC : other_kind;
  r.pc[1] = other.pc;
  file_report(r);
}

inline bool conflicts(const Record& other, const Region& region, const Record& mine) {
  const bool stale = &region == &S.shared ? other.block != S.block : other.block < S.first_block;
  if (stale || !(other.bytes & mine.bytes)) return false;
  if (other.block == S.block && other.thread == mine.thread) return false;
  if (other.strong && mine.strong) return false;
  return !ordered(other, S.current, mine.strong != 0);
}

inline void remember_read(Cell& cell, const Region& region, const Record& mine) {
  const Record& last = cell.read;
  const bool live = &region == &S.shared ? last.block == S.block : last.block >= S.first_block;
  if (live && last.block != mine.block) {
    cell.read_other_block = last;
  } else if (live && last.thread != mine.thread) {
    if (last.thread / lanes != mine.thread / lanes) cell.read_other_warp = last;
    cell.read_other_thread = last;
  }
  cell.read = mine;
}

inline void check_cell(Cell& cell, const Region& region, int index, const Access& a, u64 offset,
                       const Record& mine) {
  if (a.kind == READ) {
    const Record& last = cell.read;
    if (last.block == mine.block && last.thread == mine.thread && last.stamp == mine.stamp &&
        last.bytes == mine.bytes && last.strong == mine.strong) {
      return;
    }
  }
  if (conflicts(cell.write, region, mine)) report_race(a, index, offset, cell.write, WRITE);
  if (a.kind == READ) {
    remember_read(cell, region, mine);
    return;
  }
  for (const Record* read : {&cell.read, &cell.read_other_thread, &cell.read_other_warp,
                             &cell.read_other_block}) {
    if (conflicts(*read, region, mine)) report_race(a, index, offset, *read, READ);
  }
  cell.write = mine;
}

inline bool all_written(const u8* written, u32 bytes) {
  for (u32 i = 0; i < bytes; ++i) {
    if (!written[i]) return false;
  }
  return true;
}

inline void check_region(Region& region, int index, const Access& a) {
  const u64 offset = a.address - region.low;
  if (a.kind != READ && region.read_only) {
    file_report(access_report(READ_ONLY, "write to a buffer that is an input", a, index, offset));
  }
  if (region.written) {
    if (a.kind != WRITE && !all_written(region.written + offset, a.bytes)) {
      file_report(access_report(UNINITIALISED, "read of memory that was never written", a, index,
                                offset));
    }
    if (a.kind != READ) memset(region.written + offset, 1, a.bytes);
  }
  const int shift = region.cell_shift;
  const u64 width = u64(1) << shift, end = offset + a.bytes;
  Record mine = {S.block, me().stamp, u16(S.current), 0,
                 u8(a.kind == ATOMIC ? 1 : a.is_volatile ? 2 : 0), u32(relative(a.pc))};
  for (u64 c = offset >> shift; c << shift < end; ++c) {
    const u64 low = c << shift, first = offset > low ? offset - low : 0;
    const u64 last = std::min(end - low, width);
    mine.bytes = u8(((1u << last) - 1) & ~((1u << first) - 1));
    check_cell(region.cells[c], region, index, a, offset, mine);
  }
}

// ---- which memory ----------------------------------------------------------------------------

inline void check_shared(const Access& a) {
  const u64 offset = a.address - S.shared.low;
  for (const SharedVariable& v : S.module->shared) {
    const u64 bytes = v.dynamic ? S.launch.shared_bytes : v.bytes;
    if (offset < v.offset || offset >= v.offset + v.bytes) continue;
    if (offset + a.bytes > v.offset + bytes) {
      out_of_bounds(v.dynamic ? "past the dynamic shared memory of this launch"
                              : "past the end of a shared array", a, SHARED_REGION, offset);
    }
    if (a.bytes > v.alignment && !a.is_copy) {
      file_report(access_report(MISALIGNED, "the shared array is not declared with the alignment "
                                "that this access needs", a, SHARED_REGION, offset));
    }
    check_region(S.shared, SHARED_REGION, a);
    return;
  }
  out_of_bounds("between shared arrays", a, SHARED_REGION, offset);
}

inline void check_buffer(const Access& a) {
  const int slot = int((a.address - S.arena) >> slot_shift);
  Region& region = slots.region[slot];
  const u64 offset = a.address - region.low;
  if (region.in_use && offset < region.bytes && offset + a.bytes <= region.bytes) {
    check_region(region, slot, a);
    return;
  }
  const bool below = region.in_use && a.address < region.low;
  const bool near_next = slot + 1 < slot_count && slots.region[slot + 1].in_use &&
                         slots.region[slot + 1].low - a.address < slot_bytes / 2;
  if (below) out_of_bounds("before the start of the buffer", a, slot, offset);
  if (region.in_use && !near_next) out_of_bounds("past the end of the buffer", a, slot, offset);
  if (near_next) {
    out_of_bounds("before the start of the buffer", a, slot + 1,
                  a.address - slots.region[slot + 1].low);
  }
  out_of_bounds("a pointer into no buffer, or into one that was freed", a, NO_REGION, a.address);
}

inline bool check_module_data(const Access& a) {
  for (Region& region : S.module->data) {
    if (a.address - region.low >= region.bytes) continue;
    if (region.cells) check_region(region, MODULE_REGION, a);
    return true;
  }
  return false;
}

inline void check_counts(const Access& a) {
  if (S.launch.max_accesses && ++S.accesses > S.launch.max_accesses) {
    file_report(new_report(BUDGET, "more memory accesses than the launch may make: an endless "
                           "loop, or a block that waits for another", a.pc));
    abort_launch();
  }
  if (S.launch.preempt && (random_bits() & 0xffff) < S.launch.preempt && S.ready_warps) {
    make_ready(S.current);
    yield_thread(false);
  }
}

inline void check_access(const Access& a) {
  if (!S.running) return;
  check_counts(a);
  if (a.address - stack_low(S.current_stack) < stack_bytes) return;  // its own local memory
  if (a.address - S.shared.low < S.shared.bytes) return check_shared(a);
  if (S.arena && a.address - S.arena < arena_bytes) return check_buffer(a);
  if (check_module_data(a)) return;
  if (a.address - u64(S.stacks) < max_threads * stack_bytes) {
    out_of_bounds("a pointer into another thread's local memory", a, NO_REGION, a.address);
  }
  out_of_bounds(a.address < 4096 ? "a null pointer" : "an address outside every buffer", a,
                NO_REGION, a.address);
}
}  // namespace sim

using namespace sim;
extern "C" {
void sim_fence(int scope) {
  if (S.launch.checked && scope) note_fence();
}

void sim_atomic(const void* address, unsigned bytes, const void* pc) {
  check_access({u64(address), u64(pc), bytes, ATOMIC, false, false});
  if (S.running) meet_at_atomic(u64(address));
}
}
