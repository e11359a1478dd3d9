// bpc_team.h: a pinned, persistent team of threads that runs a table of launches.
//
// Every launch has a fixed number of slices; thread t of T runs slices [s t / T, s (t + 1) / T),
// so that what is computed never depends on T. Between calls the workers spin for about 100 us
// and then sleep. The team is made on the first call with more than one thread and kept for the
// process; a call allocates nothing. A call belongs to one caller at a time: a second caller
// waits. After fork() the child makes a team of its own.
//
// The generated file defines the kernels anywhere after including this header:
//
//   const bpc_kernel bpc_kernels[] = {fc1_relu, ...};
//
// bpc_run returns 0, or -1 if `threads` is below 1. bpc_run_range runs launches [first, last)
// only, for finding a fault launch by launch. bpc_shutdown ends the threads; a later call makes
// new ones.
#pragma once
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

typedef void (*bpc_kernel)(char* arena, const int64_t* offsets, int64_t rows, int64_t slice);

struct bpc_launch {
  int32_t kernel;         // index into bpc_kernels
  int32_t slices;         // number of calls of the kernel, slice = 0 ... slices - 1
  int32_t barrier_after;  // nonzero: later launches see this launch's results
  int32_t first_offset;   // where the kernel's offsets start in the offsets table
};

extern __attribute__((visibility("hidden"))) const bpc_kernel bpc_kernels[];

constexpr int32_t bpc_most_threads = 256;

// ---- processor mode --------------------------------------------------------------------------

// Subnormals count as zero while generated code runs (flush-to-zero, denormals-are-zero).
struct bpc_float_mode {
#if defined(__SSE2__)
  unsigned saved;
  bpc_float_mode() : saved(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(saved | 0x8040u); }
  ~bpc_float_mode() { __builtin_ia32_ldmxcsr(saved); }
#elif defined(__aarch64__)
  uint64_t saved;
  bpc_float_mode() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    __asm__ volatile("msr fpcr, %0" : : "r"(saved | (uint64_t(1) << 24)));
  }
  ~bpc_float_mode() { __asm__ volatile("msr fpcr, %0" : : "r"(saved)); }
#endif
  bpc_float_mode(const bpc_float_mode&) = delete;
};

static inline void bpc_pause() {
#if defined(__SSE2__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static inline int64_t bpc_nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// ---- pinning ---------------------------------------------------------------------------------

#if defined(__linux__)
// Put the calling thread on the thread-th processor of the mask that the caller came with. Where
// that is refused, or there are more threads than processors, the thread stays free.
typedef cpu_set_t bpc_processors;
static inline void bpc_pin(const bpc_processors& allowed, int32_t thread, int32_t threads) {
  if (CPU_COUNT(&allowed) < threads) return;
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || seen++ != thread) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);  // failure leaves the mask as it was
    return;
  }
}
// The caller's mask, restored at the end of the call.
struct bpc_caller_pin {
  bpc_processors allowed = {};
  bool known;
  explicit bpc_caller_pin(int32_t threads)
      : known(sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    if (known) bpc_pin(allowed, 0, threads);
  }
  ~bpc_caller_pin() {
    if (known) sched_setaffinity(0, sizeof allowed, &allowed);  // as it was
  }
  bpc_caller_pin(const bpc_caller_pin&) = delete;
};
#else
struct bpc_processors {};
static inline void bpc_pin(const bpc_processors&, int32_t, int32_t) {}
struct bpc_caller_pin {
  bpc_processors allowed;
  explicit bpc_caller_pin(int32_t) {}
};
#endif

// ---- waiting ---------------------------------------------------------------------------------

// Counts are unsigned: they may wrap around in a long run.
static inline uint32_t bpc_read(const uint32_t* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline void bpc_sleep_while(uint32_t* word, uint32_t value) {
#if defined(__linux__)
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
  (void)word, (void)value;
  const timespec nap = {0, 100000};
  nanosleep(&nap, nullptr);
#endif
}
static inline void bpc_wake(uint32_t* word) {
#if defined(__linux__)
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, bpc_most_threads, nullptr, nullptr, 0);
#else
  (void)word;
#endif
}

// Spin until a growing count reaches `least`; give the processor away once it takes long (more
// threads than processors, or a busy neighbour).
static inline void bpc_spin_until(const uint32_t* word, uint32_t least) {
  int32_t patience = 2000;
  while (int32_t(bpc_read(word) - least) < 0) {
    if (patience > 0) {
      bpc_pause();
      --patience;
    } else {
      sched_yield();
    }
  }
}

// ---- the team --------------------------------------------------------------------------------

struct bpc_work {
  char* arena;
  const bpc_launch* launches;
  int32_t first, last;
  const int64_t* offsets;
  int64_t rows;
};

struct bpc_progress {
  alignas(64) uint32_t barriers;  // how many barriers this thread has come to; written by it alone
};

struct bpc_team {
  alignas(64) uint32_t generation;  // grows with every call: workers wait for it
  uint32_t sleepers;
  alignas(64) bpc_work work;
  int32_t asked;           // the number of threads that the team was made for
  int32_t threads;         // that there are, the caller included; 0: none made yet
  int32_t stopping;
  pid_t owner;             // the process that made the team
  bpc_processors allowed;  // where its threads may run
  pthread_t handles[bpc_most_threads];
  bpc_progress progress[bpc_most_threads];
  pthread_mutex_t lock;
};
static bpc_team bpc_the_team = {0, 0, {}, 0, 0, 0, 0, {}, {}, {}, PTHREAD_MUTEX_INITIALIZER};

// Every thread announces its arrival in a cache line of its own and watches the others': one
// transfer between processors, where a shared counter would need two.
static inline void bpc_barrier(bpc_team& team, int32_t thread) {
  const uint32_t mine = team.progress[thread].barriers + 1;
  __atomic_store_n(&team.progress[thread].barriers, mine, __ATOMIC_RELEASE);
  for (int32_t other = 0; other < team.threads; ++other) {
    bpc_spin_until(&team.progress[other].barriers, mine);
  }
}

static inline void bpc_run_share(const bpc_work& work, const bpc_launch& launch, int64_t thread,
                                 int64_t threads) {
  const bpc_kernel kernel = bpc_kernels[launch.kernel];
  const int64_t end = launch.slices * (thread + 1) / threads;
  for (int64_t slice = launch.slices * thread / threads; slice < end; ++slice) {
    kernel(work.arena, work.offsets + launch.first_offset, work.rows, slice);
  }
}

// The last barrier is the end of the call: every thread's results are visible to the caller.
static inline void bpc_run_team_share(bpc_team& team, int32_t thread) {
  const bpc_float_mode mode;
  const bpc_work work = team.work;
  for (int32_t i = work.first; i < work.last; ++i) {
    bpc_run_share(work, work.launches[i], thread, team.threads);
    if (work.launches[i].barrier_after && i + 1 < work.last) bpc_barrier(team, thread);
  }
  bpc_barrier(team, thread);
}

static inline void bpc_await_call(bpc_team& team, uint32_t seen) {
  const int64_t start = bpc_nanoseconds();
  while (bpc_read(&team.generation) == seen) {
    for (int32_t tries = 0; tries < 64 && bpc_read(&team.generation) == seen; ++tries) bpc_pause();
    if (bpc_nanoseconds() - start < 100000) continue;
    __atomic_add_fetch(&team.sleepers, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&team.generation, __ATOMIC_SEQ_CST) == seen) {
      bpc_sleep_while(&team.generation, seen);
    }
    __atomic_sub_fetch(&team.sleepers, 1, __ATOMIC_SEQ_CST);
  }
}
static inline void bpc_announce(bpc_team& team) {
  __atomic_add_fetch(&team.generation, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&team.sleepers, __ATOMIC_SEQ_CST) > 0) bpc_wake(&team.generation);
}

// ---- life of the team ------------------------------------------------------------------------

static inline void* bpc_worker(void* argument) {
  bpc_team& team = bpc_the_team;
  const int32_t thread = int32_t(reinterpret_cast<intptr_t>(argument));
  bpc_pin(team.allowed, thread, team.threads);
  for (uint32_t seen = 0;; ++seen) {
    bpc_await_call(team, seen);
    if (team.stopping) return nullptr;
    bpc_run_team_share(team, thread);
  }
}

// End and join the workers. The lock is held.
static inline void bpc_stop_team(bpc_team& team) {
  if (team.threads == 0) return;
  team.stopping = 1;
  bpc_announce(team);
  for (int32_t thread = 1; thread < team.threads; ++thread) {
    pthread_join(team.handles[thread], nullptr);
  }
  team.threads = team.stopping = 0;
}

// Workers block all signals: handlers run in the caller's threads, as without a team. If the
// system refuses a thread, the team stays smaller; results do not depend on its size.
static inline void bpc_start_team(bpc_team& team, int32_t threads, const bpc_processors& allowed) {
  team.generation = team.sleepers = 0;
  for (int32_t t = 0; t < threads; ++t) team.progress[t].barriers = 0;
  team.allowed = allowed;
  team.owner = getpid();
  team.asked = team.threads = threads;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int32_t made = 1;
  for (; made < threads; ++made) {
    void* argument = reinterpret_cast<void*>(intptr_t(made));
    if (pthread_create(&team.handles[made], nullptr, bpc_worker, argument) != 0) break;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  team.threads = made;
}

// After fork() the workers exist in the parent only; the child's copy of the team starts empty.
static inline void bpc_forget_parent_team(bpc_team& team) {
  if (team.owner == 0 || team.owner == getpid()) return;
  team.threads = team.stopping = 0;
  team.owner = 0;
  pthread_mutex_init(&team.lock, nullptr);
}

static inline void bpc_run_alone(const bpc_work& work) {
  const bpc_float_mode mode;
  for (int32_t i = work.first; i < work.last; ++i) bpc_run_share(work, work.launches[i], 0, 1);
}

static inline void bpc_run_together(bpc_team& team, const bpc_work& work, int32_t threads) {
  bpc_forget_parent_team(team);
  pthread_mutex_lock(&team.lock);
  {
    const bpc_caller_pin pin(threads);
    if (team.threads == 0 || team.asked != threads) {
      bpc_stop_team(team);
      bpc_start_team(team, threads, pin.allowed);
    }
    team.work = work;
    bpc_announce(team);
    bpc_run_team_share(team, 0);
  }
  pthread_mutex_unlock(&team.lock);
}

extern "C" {

int bpc_run_range(char* arena, const bpc_launch* launches, int32_t first, int32_t last,
                  const int64_t* offsets, int64_t rows, int32_t threads) {
  if (threads < 1) return -1;
  const bpc_work work = {arena, launches, first, last, offsets, rows};
  if (threads == 1) {
    bpc_run_alone(work);
  } else {
    bpc_run_together(bpc_the_team, work, threads < bpc_most_threads ? threads : bpc_most_threads);
  }
  return 0;
}

int bpc_run(char* arena, const bpc_launch* launches, int32_t count, const int64_t* offsets,
            int64_t rows, int32_t threads) {
  return bpc_run_range(arena, launches, 0, count, offsets, rows, threads);
}

// Also runs when the library is unloaded or the process ends; not while a call is in progress.
__attribute__((destructor)) void bpc_shutdown() {
  bpc_team& team = bpc_the_team;
  bpc_forget_parent_team(team);
  if (pthread_mutex_trylock(&team.lock) != 0) return;
  bpc_stop_team(team);
  pthread_mutex_unlock(&team.lock);
}
}
