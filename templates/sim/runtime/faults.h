// faults.h: what builds without checks still catch: the processor's faults and a time limit.
#pragma once
#include "memory.h"
#include "scheduler.h"

#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

namespace sim {

constexpr int fault_count = 4;
constexpr int fault_signals[fault_count] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
inline int time_signal() { return SIGRTMIN + 5; }

struct Handlers {
  struct sigaction faults[fault_count], time;
  stack_t stack;
  timer_t timer;
  bool timed;
};

// The handler cannot switch fibers itself; it makes the interrupted code go on in `then`.
inline void redirect(void* context, void (*then)()) {
  static char scratch[32 << 10] __attribute__((aligned(64)));
  ucontext_t* at = static_cast<ucontext_t*>(context);
  at->uc_mcontext.gregs[REG_RSP] = (long long)(scratch + sizeof scratch - 64 - 8);
  at->uc_mcontext.gregs[REG_RIP] = (long long)then;
}
inline void go_abort() { abort_launch(); }

inline void describe_fault(Report& r, int number, u64 address) {
  r.offset = address;
  if (number == SIGFPE || number == SIGILL) {
    r.kind = UNDEFINED;
    snprintf(r.message, sizeof r.message, number == SIGFPE ? "integer division by zero"
                                                           : "illegal instruction");
  } else if (address - u64(S.stacks) < max_threads * stack_bytes) {
    snprintf(r.message, sizeof r.message, "one thread used more than %d KiB of local memory",
             int(stack_bytes >> 10));
  } else if (S.arena && address - S.arena < arena_bytes) {
    r.region = int((address - S.arena) >> slot_shift);
    r.offset = address - slots.region[r.region].low;
  }
}

inline void on_fault(int number, siginfo_t* info, void* context) {
  const u64 pc = u64(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
  Report r = new_report(OUT_OF_BOUNDS, "access to an address that is not mapped", pc + 1);
  describe_fault(r, number, u64(info->si_addr));
  file_report(r);
  redirect(context, go_abort);
}

// Kernel code is left at once; the runtime's own code sees the flag at the next switch.
inline void on_time(int, siginfo_t*, void* context) {
  S.expired = true;
  const u64 pc = u64(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
  if (!S.running || pc < S.module->code_low || pc >= S.module->code_high) return;
  static u64 stopped_at;
  stopped_at = pc + 1;
  redirect(context, [] { stop_expired(stopped_at); });
}

// Processor time, so that a busy machine does not end a launch that is merely slow.
inline void start_timer(Handlers& kept) {
  kept.timed = S.launch.seconds > 0;
  if (!kept.timed) return;
  sigevent event;
  memset(&event, 0, sizeof event);
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = time_signal();
  event._sigev_un._tid = int(syscall(SYS_gettid));
  kept.timed = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &kept.timer) == 0;
  const double whole = floor(S.launch.seconds);
  itimerspec when;
  when.it_value = {time_t(whole), long((S.launch.seconds - whole) * 1e9)};
  when.it_interval = {0, 10'000'000};
  if (kept.timed) timer_settime(kept.timer, 0, &when, nullptr);
}

inline void install_handlers(Handlers& kept) {
  static char alternate[64 << 10];
  stack_t stack = {};
  stack.ss_sp = alternate;
  stack.ss_size = sizeof alternate;
  sigaltstack(&stack, &kept.stack);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  action.sa_sigaction = on_fault;
  for (int i = 0; i < fault_count; ++i) sigaction(fault_signals[i], &action, &kept.faults[i]);
  action.sa_sigaction = on_time;
  sigaction(time_signal(), &action, &kept.time);
  start_timer(kept);
}

inline void restore_handlers(const Handlers& kept) {
  if (kept.timed) timer_delete(kept.timer);
  for (int i = 0; i < fault_count; ++i) sigaction(fault_signals[i], &kept.faults[i], nullptr);
  // A tick may still be pending; ignoring the signal discards it.
  struct sigaction ignore;
  memset(&ignore, 0, sizeof ignore);
  ignore.sa_handler = SIG_IGN;
  sigaction(time_signal(), &ignore, nullptr);
  sigaction(time_signal(), &kept.time, nullptr);
  sigaltstack(&kept.stack, nullptr);
}
}  // namespace sim
