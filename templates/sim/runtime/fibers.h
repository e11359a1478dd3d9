// fibers.h: CUDA threads as fibers on one operating system thread.
#pragma once
#include "state.h"

#include <sys/mman.h>

#ifndef __x86_64__
#error "the simulator's context switch is written for x86-64"
#endif

namespace sim {

// Saves the callee-saved registers and the stack pointer, and loads another's.
extern "C" void sim_switch(void** save, void* load);
asm(R"(
  .text
  .hidden sim_switch
  .globl sim_switch
  .type sim_switch, @function
sim_switch:
  push %rbx
  push %rbp
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
  pop %rbp
  pop %rbx
  ret
  .size sim_switch, .-sim_switch
)");

void run_threads();  // what a new fiber does; never returns

inline u64 stack_low(int stack) { return u64(S.stacks) + u64(stack) * stack_bytes; }

// A stack whose first switch enters run_threads. Tops are staggered, since stacks at equal
// offsets would compete for the same cache sets.
inline void* new_stack(int stack) {
  const u64 top = (stack_low(stack) + stack_bytes - 128 - u64(stack % 59) * 192) & ~u64(63);
  u64* p = reinterpret_cast<u64*>(top);
  *--p = 0;  // keeps the alignment that a called function expects
  *--p = u64(&run_threads);
  for (int saved = 0; saved < 6; ++saved) *--p = 0;
  return p;
}

inline void reserve_stacks() {
  if (S.stacks) return;
  const u64 bytes = max_threads * stack_bytes;
  S.stacks = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  for (int stack = 0; stack < max_threads; ++stack) {
    mprotect(S.stacks + u64(stack) * stack_bytes, 4096, PROT_NONE);
  }
}

inline void free_all_stacks() {
  S.free_stacks.resize(max_threads);
  for (int i = 0; i < max_threads; ++i) S.free_stacks[size_t(i)] = max_threads - 1 - i;
}

inline int take_stack() {
  const int stack = S.free_stacks.back();
  S.free_stacks.pop_back();
  return stack;
}

// Leaves all fibers for good and returns to the host.
[[noreturn]] inline void leave() {
  void* abandoned;
  sim_switch(&abandoned, S.host_stack_pointer);
  __builtin_unreachable();
}
[[noreturn]] inline void abort_launch() {
  S.aborted = true;
  leave();
}
}  // namespace sim
