// memory.h: guarded buffers, each in a slot of its own within one reserved range of addresses.
#pragma once
#include "state.h"

#include <sys/mman.h>

namespace sim {

constexpr int slot_shift = 26, slot_count = 4096;
constexpr u64 slot_bytes = u64(1) << slot_shift, page = 4096;
constexpr u64 arena_bytes = u64(slot_count) << slot_shift;
// A buffer begins this far into its slot at the earliest, so that a negative index meets a
// guard page too.
constexpr u64 slot_lead = 1 << 20;

struct Slots {
  Region region[slot_count];
  int next = 0;
};
extern Slots slots;

inline void* map_zeroed(u64 bytes) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}
inline u64 cell_bytes(u64 bytes, int cell_shift) {
  return ((bytes >> cell_shift) + 2) * sizeof(Cell);
}
inline u64 whole_pages(u64 bytes) { return std::max(page, (bytes + page - 1) & ~(page - 1)); }

inline bool reserve_arena() {
  if (S.arena) return true;
  void* low = mmap(nullptr, arena_bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (low == MAP_FAILED) return false;
  S.arena = u64(low);
  return true;
}

inline int find_free_slot() {
  for (int tried = 0; tried < slot_count; ++tried) {
    const int slot = (slots.next + tried) % slot_count;
    if (slots.region[slot].in_use) continue;
    slots.next = slot + 1;
    return slot;
  }
  return -1;
}
inline u64 slot_low(int slot) { return S.arena + (u64(slot) << slot_shift) + slot_lead; }
}  // namespace sim

using namespace sim;
extern "C" {
// A buffer whose end touches an inaccessible page (but for the slack of `alignment`); all bytes
// are 0xff, which is NaN in every floating-point format. Returns its slot, or -1.
int sim_buffer_new(uint64_t bytes, uint64_t alignment, int cell_shift, int track, uint64_t* low) {
  if (!reserve_arena() || whole_pages(bytes) > slot_bytes - 2 * slot_lead) return -1;
  const int slot = find_free_slot();
  if (slot < 0) return -1;
  const u64 pages = whole_pages(bytes), first = slot_low(slot);
  mprotect(reinterpret_cast<void*>(first), pages, PROT_READ | PROT_WRITE);
  memset(reinterpret_cast<void*>(first), 0xff, pages);
  Region& region = slots.region[slot];
  region.low = first + ((pages - bytes) & ~(alignment - 1));
  region.bytes = bytes;
  region.cell_shift = cell_shift;
  region.cells = static_cast<Cell*>(map_zeroed(cell_bytes(bytes, cell_shift)));
  region.written = track ? static_cast<u8*>(map_zeroed(bytes + 64)) : nullptr;
  region.read_only = false;
  region.in_use = true;
  *low = region.low;
  return slot;
}

void sim_buffer_free(int slot) {
  Region& region = slots.region[slot];
  if (!region.in_use) return;
  // New pages over the old ones give the memory back.
  mmap(reinterpret_cast<void*>(slot_low(slot)), whole_pages(region.bytes), PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  munmap(region.cells, cell_bytes(region.bytes, region.cell_shift));
  if (region.written) munmap(region.written, region.bytes + 64);
  memset(&region, 0, sizeof region);
}

void sim_buffer_set_read_only(int slot, int read_only) {
  slots.region[slot].read_only = read_only != 0;
}

// Counts a range as written (1) or as never written (0).
void sim_buffer_mark(int slot, uint64_t offset, uint64_t bytes, int written) {
  Region& region = slots.region[slot];
  if (region.written) memset(region.written + offset, written, bytes);
}

// One byte per byte of the buffer: whether checked kernels or the host wrote it.
const uint8_t* sim_buffer_written(int slot) { return slots.region[slot].written; }
}
