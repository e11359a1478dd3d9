// state.h: what one launch knows. The host holds Python's interpreter lock during a launch, so
// there is one launch at a time and this state is global.
#pragma once
#define SIM_RUNTIME
#include "../include/sim_device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace sim {

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

constexpr int max_threads = 1024, lanes = 32, max_warps = max_threads / lanes;
constexpr u64 stack_bytes = 256 << 10;

// ---- shared with the host, which mirrors these structures ------------------------------------

enum Kind {
  RACE = 1,
  OUT_OF_BOUNDS,
  UNINITIALISED,
  MISALIGNED,
  DIVERGENT_BARRIER,
  DEADLOCK,
  READ_ONLY,
  UNDEFINED,
  BUDGET,
  TRAP,
  // Threads met at one line through two call addresses. The host looks both up: a compiler may
  // have copied one barrier of the source, otherwise this is a divergent barrier.
  TWO_ADDRESSES
};
enum AccessKind { READ = 0, WRITE = 1, ATOMIC = 2 };
enum { NO_REGION = -1, SHARED_REGION = -2, MODULE_REGION = -3 };

struct Report {
  int kind, region;
  u32 block[2], thread[2];  // linear indices: who found it, and the other party
  int access[2];
  u64 offset, bytes;
  u64 pc[2];  // relative to the module's load address; 0: unknown
  u64 count;
  char message[192];
};

struct SharedVariable {
  u64 offset, bytes;  // within the thread-local block that stands for shared memory
  u32 alignment;      // as declared, which is what the device guarantees
  u32 dynamic;        // 1: its size is the launch's
};

struct Segment {
  u64 low, bytes;
  u32 writable, unused;
};

struct Launch {
  void* module;
  void (*kernel)(void**);
  void** arguments;
  u64 shared_base;
  u64 seed, max_accesses;
  double seconds;
  u32 grid[3], block[3];
  u32 shared_bytes, preempt;  // preempt: probability at an access, in 1/65536
  int order, checked;
  u32 max_reports;
  float adversarial;
};
enum Order { IN_ORDER, REVERSE, RANDOM };

// ---- modules and memory ----------------------------------------------------------------------

// One access as the race detector remembers it. 16 bytes.
struct Record {
  u32 block;  // running number over all launches; 0: none
  u32 stamp;  // the accessing thread's clock
  u16 thread;
  u8 bytes;  // which bytes of the cell
  u8 strong;  // 1: atomic, 2: volatile
  u32 pc;
};

// What is remembered of a cell of 1, 2 or 4 bytes: its last write, and of its reads the last,
// and the last by another thread, another warp and another block than that one's. A write that
// is ordered after these four is ordered after all reads (but for exotic partial-warp orders).
struct Cell {
  Record write, read, read_other_thread, read_other_warp, read_other_block;
};

struct Region {
  u64 low, bytes;
  Cell* cells;
  u8* written;  // one byte per byte; null where all content counts as written
  int cell_shift;
  bool read_only, in_use;
};

struct Module {
  u64 code_base, code_low, code_high;
  std::vector<SharedVariable> shared;
  std::vector<Segment> segments;
  std::vector<Region> data;
  u64 shared_bytes;
  int shared_cell_shift;
};

// ---- threads ---------------------------------------------------------------------------------

enum class Phase : u8 { fresh, ready, at_barrier, in_warp, done };

struct Thread {
  void* stack_pointer;
  int stack;
  Phase phase;
  // at a barrier
  u64 barrier_pc;
  u32 barrier_site;
  int vote, predicate;
  // memory order: the clock of its accesses, and what its last device fence covered
  u32 stamp;
  u32 fence_stamp, fence_block_base, fence_warp_base;
  bool fenced, observed_unfenced;
};

struct Lane {
  u32 mask;
  int operation, argument, width;
  u64 value, result, pc;
};

struct Warp {
  u32 ready, waiting, exited, all;
  u32 base;  // accesses of this warp with an older stamp are ordered before its next ones
  Lane lane[lanes];
  u32 (*known)[lanes];  // orders made by partial __syncwarp; allocated when first needed
};

struct State {
  Launch launch;
  Module* module;
  bool running, aborted;
  volatile bool expired;
  // the block
  Thread threads[max_threads];
  Warp warps[max_warps];
  int thread_count, warp_count, alive, waiting_at_barrier, current, current_warp, current_stack;
  u32 ready_warps;
  int vote_result;
  u32 clock, block_base, block, first_block, next_block = 1;
  u32 fences;  // passed in this block
  // stacks
  char* stacks;
  std::vector<int> free_stacks;
  void* host_stack_pointer;
  // memory
  u64 arena;
  Region shared;
  u64 shared_capacity;
  // chance and counts
  u64 random;
  u64 accesses, switches;
  std::vector<Report> reports;
  std::unordered_map<u64, size_t> report_of_key;
};
extern State S;

inline u32 random_bits() {  // xorshift64*
  S.random ^= S.random >> 12;
  S.random ^= S.random << 25;
  S.random ^= S.random >> 27;
  return u32((S.random * 0x2545F4914F6CDD1Dull) >> 32);
}
inline Thread& me() { return S.threads[S.current]; }
inline Warp& warp_of(int thread) { return S.warps[thread / lanes]; }
inline u64 relative(u64 pc) { return pc ? pc - S.module->code_base : 0; }
#define SIM_CALLER (u64(__builtin_return_address(0)))

// ---- reports ---------------------------------------------------------------------------------

inline Report new_report(Kind kind, const char* message, u64 pc = 0) {
  Report r;
  memset(&r, 0, sizeof r);
  r.kind = kind;
  r.region = NO_REGION;
  r.block[0] = S.block - S.first_block;
  r.thread[0] = u32(S.current);
  r.thread[1] = ~0u;
  r.pc[0] = relative(pc);
  r.count = 1;
  snprintf(r.message, sizeof r.message, "%s", message);
  return r;
}

// Files a report; one that differs only in thread and address is counted instead.
inline void file_report(const Report& r) {
  u64 key = u64(r.kind) | u64(u32(r.region)) << 8;
  for (u64 part : {r.pc[0], r.pc[1]}) key = (key ^ part) * 0x9E3779B97F4A7C15ull + (key >> 29);
  const auto found = S.report_of_key.find(key);
  if (found != S.report_of_key.end()) {
    S.reports[found->second].count++;
  } else if (S.reports.size() < S.launch.max_reports) {
    S.report_of_key[key] = S.reports.size();
    S.reports.push_back(r);
  }
}
}  // namespace sim
