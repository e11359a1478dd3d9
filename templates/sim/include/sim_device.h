// sim_device.h: what kernels call in the runtime. Kernels are compiled against this alone.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define SIM_INLINE static inline __attribute__((always_inline, unused))
// Code of the simulator inside a kernel's library must not report its own memory accesses.
#define SIM_UNCHECKED __attribute__((no_sanitize_thread, no_sanitize_undefined))

struct sim_triple {
  unsigned x, y, z;
};

// Who the running CUDA thread is. Constant while that thread runs, hence never instrumented.
struct sim_place {
  sim_triple thread, block, block_size, grid_size;
  unsigned lane;
};

enum sim_access_kind { SIM_READ, SIM_WRITE, SIM_VOLATILE_READ, SIM_VOLATILE_WRITE };
enum sim_vote { SIM_PLAIN, SIM_COUNT, SIM_AND, SIM_OR };
enum sim_warp_op {
  SIM_SYNCWARP,
  SIM_SHUFFLE,
  SIM_SHUFFLE_UP,
  SIM_SHUFFLE_DOWN,
  SIM_SHUFFLE_XOR,
  SIM_BALLOT,
  SIM_ANY,
  SIM_ALL,
  SIM_REDUCE_ADD,
  SIM_REDUCE_MIN_SIGNED,
  SIM_REDUCE_MAX_SIGNED,
  SIM_REDUCE_MIN,
  SIM_REDUCE_MAX,
  SIM_REDUCE_AND,
  SIM_REDUCE_OR,
  SIM_REDUCE_XOR
};

extern "C" {
#ifdef SIM_RUNTIME
extern sim_place sim_here;
#else
extern const sim_place sim_here;
#endif
// All threads of the block meet. `site` tells barriers apart where the address of the call
// cannot (0: use the address).
// `site` tells barriers apart: the number of one barrier, or SIM_LINE plus the line of the call,
// which several callers of one function may share.
#define SIM_LINE 0x80000000u
int sim_barrier(int vote, int predicate, unsigned site);
// All lanes of `mask` meet; the result of a shuffle, a vote or a reduction.
uint64_t sim_warp(int operation, unsigned mask, uint64_t value, int argument, int width);
// scope 0: the block, 1: the device.
void sim_fence(int scope);
// Announces an atomic access made by unchecked code on behalf of the caller at `pc`.
void sim_atomic(const void* address, unsigned bytes, const void* pc);
// An access announced by translated PTX, which is not instrumented by the compiler.
void sim_access(const void* address, unsigned bytes, int kind);
void sim_trap(const char* message);
// Moves a value by up to `ulps` units in the last place; the identity unless a launch asks.
float sim_perturb(float value, float ulps);
}
