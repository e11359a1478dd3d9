// runtime.cpp: launches. Built once, loaded before any kernel's library.
#include "detector.h"
#include "faults.h"
#include "hooks.h"

#include <xmmintrin.h>

namespace sim {
State S;
Slots slots;
Releases between;

constexpr unsigned flush_subnormals = 0x8040;  // MXCSR: FTZ and DAZ, as --ftz=true

void prepare_shared() {
  const Module& module = *S.module;
  S.shared.low = S.launch.shared_base;
  S.shared.bytes = module.shared_bytes;
  S.shared.cell_shift = module.shared_cell_shift;
  if (!S.launch.checked || module.shared_bytes <= S.shared_capacity) return;
  S.shared_capacity = module.shared_bytes;
  free(S.shared.cells);
  free(S.shared.written);
  S.shared.cells = static_cast<Cell*>(calloc(S.shared_capacity + 2, sizeof(Cell)));
  S.shared.written = static_cast<u8*>(malloc(S.shared_capacity + 64));
}

// Shared memory holds anything when a block starts: here NaN, and nothing counts as written.
void poison_shared() {
  for (const SharedVariable& v : S.module->shared) {
    const u64 bytes = v.dynamic ? std::min(u64(S.launch.shared_bytes), v.bytes) : v.bytes;
    memset(reinterpret_cast<void*>(S.shared.low + v.offset), 0xff, bytes);
    if (S.launch.checked) memset(S.shared.written + v.offset, 0, bytes);
  }
}

void prepare_block(u64 index) {
  const sim_triple grid = sim_here.grid_size;
  sim_here.block = {u32(index % grid.x), u32(index / grid.x % grid.y),
                    u32(index / (u64(grid.x) * grid.y))};
  S.block = S.first_block + u32(index);
  S.clock = 1;
  S.block_base = 0;
  S.fences = 0;
  S.alive = S.thread_count;
  S.waiting_at_barrier = 0;
  S.current_warp = S.launch.order == REVERSE ? S.warp_count - 1 : 0;
  if (S.launch.order == RANDOM) S.current_warp = int(random_bits() % u32(S.warp_count));
  S.ready_warps = 0;
  between.observed.clear();
  for (int w = 0; w < S.warp_count; ++w) {
    Warp& warp = S.warps[w];
    const int here = std::min(S.thread_count - w * lanes, lanes);
    warp.all = here == lanes ? ~0u : (1u << here) - 1;
    warp.ready = warp.all;
    warp.waiting = warp.exited = warp.base = 0;
    free(warp.known);
    warp.known = nullptr;
    S.ready_warps |= 1u << w;
  }
  for (int t = 0; t < S.thread_count; ++t) {
    S.threads[t] = Thread{};
    S.threads[t].stamp = 1;
  }
}

void run_block(u64 index) {
  prepare_block(index);
  poison_shared();
  free_all_stacks();
  const int first = take_next();
  Thread& thread = S.threads[first];
  thread.phase = Phase::ready;
  thread.stack = S.current_stack = take_stack();
  become(first);
  sim_switch(&S.host_stack_pointer, new_stack(thread.stack));
}

std::vector<u32> block_order(u64 count) {
  std::vector<u32> order(count);
  for (u64 i = 0; i < count; ++i) order[i] = u32(S.launch.order == REVERSE ? count - 1 - i : i);
  for (u64 i = count; S.launch.order == RANDOM && i > 1; --i) {
    std::swap(order[i - 1], order[random_bits() % i]);
  }
  return order;
}

void forget_all_records() {
  for (Region& region : slots.region) {
    if (region.in_use) {
      madvise(region.cells, cell_bytes(region.bytes, region.cell_shift), MADV_DONTNEED);
    }
  }
  memset(static_cast<void*>(S.shared.cells), 0, S.shared_capacity * sizeof(Cell));
  S.next_block = 1;
}

void begin(const Launch& launch, u64 blocks) {
  S.launch = launch;
  S.module = static_cast<Module*>(launch.module);
  S.random = launch.seed * 0x9E3779B97F4A7C15ull | 1;
  S.aborted = false;
  S.expired = false;
  S.accesses = S.switches = 0;
  S.reports.clear();
  S.report_of_key.clear();
  between.released.clear();
  if (blocks > 0xffffffffu - S.next_block) forget_all_records();
  S.first_block = S.next_block;
  S.next_block += u32(blocks);
  sim_here.block_size = {launch.block[0], launch.block[1], launch.block[2]};
  sim_here.grid_size = {launch.grid[0], launch.grid[1], launch.grid[2]};
  S.thread_count = int(launch.block[0] * launch.block[1] * launch.block[2]);
  S.warp_count = (S.thread_count + lanes - 1) / lanes;
  reserve_stacks();
  prepare_shared();
}
}  // namespace sim

extern "C" {
void* sim_module_new(uint64_t code_base, uint64_t code_low, uint64_t code_high,
                     uint64_t shared_bytes, int shared_cell_shift, const SharedVariable* shared,
                     int shared_count, const Segment* segments, int segment_count) {
  Module* module = new Module{code_base, code_low, code_high, {}, {}, {}, shared_bytes,
                              shared_cell_shift};
  module->shared.assign(shared, shared + shared_count);
  for (int i = 0; i < segment_count; ++i) {
    Region region = {};
    region.low = segments[i].low;
    region.bytes = segments[i].bytes;
    region.cell_shift = 2;
    if (segments[i].writable) {
      region.cells = static_cast<Cell*>(map_zeroed(cell_bytes(region.bytes, 2)));
    }
    module->data.push_back(region);
  }
  return module;
}

// 0: all blocks ran; 1: stopped at a report.
int sim_launch(const Launch* launch) {
  const u64 blocks = u64(launch->grid[0]) * launch->grid[1] * launch->grid[2];
  begin(*launch, blocks);
  const bool in_order = launch->order == IN_ORDER;
  const std::vector<u32> order = in_order ? std::vector<u32>() : block_order(blocks);
  Handlers handlers;
  install_handlers(handlers);
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | flush_subnormals);
  S.running = true;
  for (u64 i = 0; i < blocks && !S.aborted; ++i) run_block(in_order ? i : order[i]);
  S.running = false;
  _mm_setcsr(mode);
  restore_handlers(handlers);
  return S.aborted;
}

int sim_report_count() { return int(S.reports.size()); }
const Report* sim_report(int index) { return &S.reports[size_t(index)]; }
uint64_t sim_access_count() { return S.accesses; }
uint64_t sim_switch_count() { return S.switches; }
}
