// hooks.h: the calls that -fsanitize=thread and -fsanitize=alignment,bounds,... make the compiler
// insert. The sanitizers' own libraries are not linked; these definitions take their place.
#pragma once
#include "detector.h"

using namespace sim;

namespace sim {
// Where in the program text a finding of the undefined-behaviour checks lies.
struct Source_location {
  const char* file;
  u32 line, column;
};
struct Type_mismatch {
  Source_location location;
  const void* type;
  u8 log_alignment, kind;
};

inline void locate(Report& r, u64 address) {
  r.offset = address;
  if (address - S.shared.low < S.shared.bytes) {
    r.region = SHARED_REGION;
    r.offset = address - S.shared.low;
  } else if (S.arena && address - S.arena < arena_bytes) {
    r.region = int((address - S.arena) >> slot_shift);
    r.offset = address - slots.region[r.region].low;
  }
}

inline void misaligned(u64 address, u64 alignment, bool is_write, u64 pc) {
  Report r = new_report(MISALIGNED, "the address is not a multiple of the access's size", pc);
  locate(r, address);
  r.bytes = alignment;
  r.access[0] = is_write ? WRITE : READ;
  file_report(r);
  abort_launch();
}

inline void check_alignment(u64 address, u64 alignment, bool is_write, u64 pc) {
  if ((address & (alignment - 1)) && S.running) misaligned(address, alignment, is_write, pc);
}

inline void undefined(const char* message, u64 pc, bool stop) {
  if (!S.running) return;
  file_report(new_report(UNDEFINED, message, pc));
  if (stop) abort_launch();
}
}  // namespace sim

#define SIM_HOOK(NAME, BYTES, KIND, VOLATILE)                                     \
  void __tsan_##NAME##BYTES(void* address) {                                      \
    const u64 pc = SIM_CALLER;                                                    \
    check_alignment(u64(address), BYTES, KIND == WRITE, pc);                      \
    check_access({u64(address), pc, BYTES, KIND, VOLATILE, false});               \
  }
#define SIM_HOOKS(BYTES)                     \
  SIM_HOOK(read, BYTES, READ, false)           \
  SIM_HOOK(write, BYTES, WRITE, false)         \
  SIM_HOOK(volatile_read, BYTES, READ, true)   \
  SIM_HOOK(volatile_write, BYTES, WRITE, true)
// memcpy of small sizes: no alignment is promised.
#define SIM_UNALIGNED_HOOKS(BYTES)                                         \
  void __tsan_unaligned_read##BYTES(void* address) {                       \
    check_access({u64(address), SIM_CALLER, BYTES, READ, false, true});          \
  }                                                                        \
  void __tsan_unaligned_write##BYTES(void* address) {                      \
    check_access({u64(address), SIM_CALLER, BYTES, WRITE, false, true});         \
  }
#define SIM_UNDEFINED(NAME, MESSAGE, STOP) \
  void __ubsan_handle_##NAME(void*, u64, u64) { undefined(MESSAGE, SIM_CALLER, STOP); }

extern "C" {
void sim_access(const void* address, unsigned bytes, int kind) {
  const u64 pc = SIM_CALLER;
  const bool is_write = kind == SIM_WRITE || kind == SIM_VOLATILE_WRITE;
  check_alignment(u64(address), bytes, is_write, pc);
  check_access({u64(address), pc, bytes, is_write ? WRITE : READ, kind >= SIM_VOLATILE_READ,
                false});
}

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
SIM_HOOKS(1)
SIM_HOOKS(2)
SIM_HOOKS(4)
SIM_HOOKS(8)
SIM_HOOKS(16)
SIM_UNALIGNED_HOOKS(2)
SIM_UNALIGNED_HOOKS(4)
SIM_UNALIGNED_HOOKS(8)
SIM_UNALIGNED_HOOKS(16)
void __tsan_read_range(void* address, unsigned long bytes) {
  if (bytes) check_access({u64(address), SIM_CALLER, u32(bytes), READ, false, true});
}
void __tsan_write_range(void* address, unsigned long bytes) {
  if (bytes) check_access({u64(address), SIM_CALLER, u32(bytes), WRITE, false, true});
}

void __ubsan_handle_type_mismatch_v1(Type_mismatch* data, u64 address) {
  const u64 alignment = u64(1) << data->log_alignment;
  if (!S.running || !address || !(address & (alignment - 1))) return;
  misaligned(address, alignment, data->kind == 1, SIM_CALLER);
}
SIM_UNDEFINED(out_of_bounds, "array index out of bounds", true)
SIM_UNDEFINED(divrem_overflow, "integer division by zero, or one that overflows", true)
SIM_UNDEFINED(shift_out_of_bounds, "shift by a negative amount or by more than the width", false)
SIM_UNDEFINED(add_overflow, "signed overflow in an addition", false)
SIM_UNDEFINED(sub_overflow, "signed overflow in a subtraction", false)
SIM_UNDEFINED(mul_overflow, "signed overflow in a multiplication", false)
SIM_UNDEFINED(negate_overflow, "signed overflow in a negation", false)
}
