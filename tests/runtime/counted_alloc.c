// Counts allocations, in every thread of the process, while counted_call runs a program.
// Preloaded, it stands before the C library; the names that glibc keeps for itself do the work.
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

static int counting;
static long calls;

static void note(void) {
  if (__atomic_load_n(&counting, __ATOMIC_SEQ_CST)) __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
}

void* malloc(size_t n) { note(); return __libc_malloc(n); }
void* calloc(size_t n, size_t size) { note(); return __libc_calloc(n, size); }
void* realloc(void* p, size_t n) { note(); return __libc_realloc(p, n); }
void* memalign(size_t unit, size_t n) { note(); return __libc_memalign(unit, n); }
void* aligned_alloc(size_t unit, size_t n) { note(); return __libc_memalign(unit, n); }
int posix_memalign(void** p, size_t unit, size_t n) {
  note();
  *p = __libc_memalign(unit, n);
  return *p ? 0 : 12;
}
void* mmap(void* at, size_t n, int protection, int flags, int file, off_t offset) {
  note();
  return (void*)syscall(SYS_mmap, at, n, protection, flags, file, offset);
}

// A call of bpc_run_range between the two marks: nothing else runs in between.
typedef int (*run_range)(char*, const void*, int32_t, int32_t, const int64_t*, int64_t, int32_t);
long counted_call(run_range run, char* arena, const void* launches, int32_t first, int32_t last,
                  const int64_t* offsets, int64_t rows, int32_t threads) {
  __atomic_store_n(&calls, 0, __ATOMIC_SEQ_CST);
  __atomic_store_n(&counting, 1, __ATOMIC_SEQ_CST);
  const int status = run(arena, launches, first, last, offsets, rows, threads);
  __atomic_store_n(&counting, 0, __ATOMIC_SEQ_CST);
  return status ? -1 : __atomic_load_n(&calls, __ATOMIC_SEQ_CST);
}
