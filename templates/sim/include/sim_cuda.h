// sim_cuda.h: CUDA's names with a meaning on the CPU, so that a .cu file compiles unchanged.
#pragma once
#include "sim_device.h"
#include "sim_export.h"
#include "sim_math.h"

// ---- keywords --------------------------------------------------------------------------------

#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDA_ARCH__ 900
#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
// Static and dynamic shared memory both: a block of thread-local variables, which the library's
// symbol table lists with their sizes.
#define __shared__ thread_local
#define __launch_bounds__(...)
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
// A shared array that keeps no better alignment than its element's.
template <class Array> struct alignas(16) sim_displaced {
  unsigned char gap[sizeof(typename std::remove_all_extents<Array>::type)];
  Array value;
};
#define warpSize 32
#define threadIdx sim_here.thread
#define blockIdx sim_here.block
#define blockDim sim_here.block_size
#define gridDim sim_here.grid_size

// ---- vectors ---------------------------------------------------------------------------------

#define SIM_VECTORS(T, NAME)                                                       \
  struct NAME##1 {                                                                 \
    T x;                                                                           \
  };                                                                               \
  struct alignas(2 * sizeof(T)) NAME##2 {                                          \
    T x, y;                                                                        \
  };                                                                               \
  struct NAME##3 {                                                                 \
    T x, y, z;                                                                     \
  };                                                                               \
  struct alignas(sizeof(T) == 8 ? 16 : 4 * sizeof(T)) NAME##4 {                    \
    T x, y, z, w;                                                                  \
  };                                                                               \
  SIM_INLINE NAME##1 make_##NAME##1(T x) { return {x}; }                           \
  SIM_INLINE NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                   \
  SIM_INLINE NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }           \
  SIM_INLINE NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SIM_VECTORS(signed char, char)
SIM_VECTORS(unsigned char, uchar)
SIM_VECTORS(short, short)
SIM_VECTORS(unsigned short, ushort)
SIM_VECTORS(int, int)
SIM_VECTORS(unsigned, uint)
SIM_VECTORS(long long, longlong)
SIM_VECTORS(unsigned long long, ulonglong)
SIM_VECTORS(float, float)
SIM_VECTORS(double, double)
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

// ---- meeting ---------------------------------------------------------------------------------

#define SIM_BARRIER_FUNCTION(TYPE, NAME, PARAMETERS, VOTE, PREDICATE)          \
  SIM_INLINE TYPE NAME(PARAMETERS unsigned line = __builtin_LINE()) {          \
    return TYPE(sim_barrier(VOTE, PREDICATE, SIM_LINE | line));                \
  }
#define SIM_PREDICATE int p,
SIM_BARRIER_FUNCTION(void, __syncthreads, , SIM_PLAIN, 0)
SIM_BARRIER_FUNCTION(int, __syncthreads_count, SIM_PREDICATE, SIM_COUNT, p != 0)
SIM_BARRIER_FUNCTION(int, __syncthreads_and, SIM_PREDICATE, SIM_AND, p != 0)
SIM_BARRIER_FUNCTION(int, __syncthreads_or, SIM_PREDICATE, SIM_OR, p != 0)
SIM_INLINE void __syncwarp(unsigned mask = ~0u) { sim_warp(SIM_SYNCWARP, mask, 0, 0, 32); }
SIM_INLINE void __threadfence_block() { sim_fence(0); }
SIM_INLINE void __threadfence() { sim_fence(1); }
SIM_INLINE void __threadfence_system() { sim_fence(1); }
SIM_INLINE void __trap() { sim_trap("__trap()"); }
#undef assert
#define assert(condition) ((condition) ? (void)0 : sim_trap("assert(" #condition ") failed"))

template <class T> SIM_INLINE T sim_shuffle(int op, unsigned mask, T value, int by, int width) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
  using Bits = typename std::conditional<sizeof(T) == 4, uint32_t, uint64_t>::type;
  return sim_bits<T>(Bits(sim_warp(op, mask, sim_bits<Bits>(value), by, width)));
}
#define SIM_SHUFFLE_FUNCTION(NAME, OPERATION)                                      \
  template <class T> SIM_INLINE T NAME(unsigned mask, T value, int by, int width = 32) { \
    return sim_shuffle(OPERATION, mask, value, by, width);                         \
  }
SIM_SHUFFLE_FUNCTION(__shfl_sync, SIM_SHUFFLE)
SIM_SHUFFLE_FUNCTION(__shfl_up_sync, SIM_SHUFFLE_UP)
SIM_SHUFFLE_FUNCTION(__shfl_down_sync, SIM_SHUFFLE_DOWN)
SIM_SHUFFLE_FUNCTION(__shfl_xor_sync, SIM_SHUFFLE_XOR)
SIM_INLINE unsigned __ballot_sync(unsigned mask, int p) {
  return unsigned(sim_warp(SIM_BALLOT, mask, p != 0, 0, 32));
}
SIM_INLINE int __any_sync(unsigned mask, int p) {
  return int(sim_warp(SIM_ANY, mask, p != 0, 0, 32));
}
SIM_INLINE int __all_sync(unsigned mask, int p) {
  return int(sim_warp(SIM_ALL, mask, p != 0, 0, 32));
}
#define SIM_REDUCE_FUNCTION(NAME, T, OPERATION)                    \
  SIM_INLINE T NAME(unsigned mask, T value) {                      \
    return T(sim_warp(OPERATION, mask, uint32_t(value), 0, 32));   \
  }
SIM_REDUCE_FUNCTION(__reduce_add_sync, int, SIM_REDUCE_ADD)
SIM_REDUCE_FUNCTION(__reduce_add_sync, unsigned, SIM_REDUCE_ADD)
SIM_REDUCE_FUNCTION(__reduce_min_sync, int, SIM_REDUCE_MIN_SIGNED)
SIM_REDUCE_FUNCTION(__reduce_min_sync, unsigned, SIM_REDUCE_MIN)
SIM_REDUCE_FUNCTION(__reduce_max_sync, int, SIM_REDUCE_MAX_SIGNED)
SIM_REDUCE_FUNCTION(__reduce_max_sync, unsigned, SIM_REDUCE_MAX)
SIM_REDUCE_FUNCTION(__reduce_and_sync, unsigned, SIM_REDUCE_AND)
SIM_REDUCE_FUNCTION(__reduce_or_sync, unsigned, SIM_REDUCE_OR)
SIM_REDUCE_FUNCTION(__reduce_xor_sync, unsigned, SIM_REDUCE_XOR)

// ---- memory ----------------------------------------------------------------------------------

template <class T> SIM_INLINE T __ldg(const T* p) { return *p; }
template <class T> SIM_INLINE T __ldcg(const T* p) { return *p; }
template <class T> SIM_INLINE T __ldcs(const T* p) { return *p; }
template <class T> SIM_INLINE void __stcg(T* p, T value) { *p = value; }
template <class T> SIM_INLINE void __stcs(T* p, T value) { *p = value; }

// ---- arithmetic ------------------------------------------------------------------------------

SIM_INLINE float __fadd_rn(float a, float b) { return a + b; }
SIM_INLINE float __fsub_rn(float a, float b) { return a - b; }
SIM_INLINE float __fmul_rn(float a, float b) { return a * b; }
SIM_INLINE float __fdiv_rn(float a, float b) { return a / b; }
SIM_INLINE float __frcp_rn(float a) { return 1.0f / a; }
SIM_INLINE float __fsqrt_rn(float a) { return sqrtf(a); }
SIM_INLINE double __dsqrt_rn(double a) { return sqrt(a); }
SIM_INLINE double __ddiv_rn(double a, double b) { return a / b; }
SIM_INLINE float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
SIM_INLINE double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
SIM_INLINE double __dadd_rn(double a, double b) { return a + b; }
SIM_INLINE double __dmul_rn(double a, double b) { return a * b; }
SIM_INLINE float __fdividef(float a, float b) { return sim_divide(a, b); }
SIM_INLINE float sim_fast_exp(float x) { return sim_exp2(x * 1.44269504f); }
SIM_INLINE float sim_fast_log(float x) { return sim_log2(x) * 0.693147182f; }
// The C library declares functions of these names, hence macros.
#define __expf sim_fast_exp
#define __logf sim_fast_log
#define __sinf sim_sin
#define __cosf sim_cos
SIM_INLINE float __saturatef(float x) { return sim_min(sim_max(x, 0.0f), 1.0f); }
#define rsqrtf sim_rsqrt
#define fmaxf sim_max<float>
#define fminf sim_min<float>
#define fmax sim_max<double>
#define fmin sim_min<double>

#define SIM_EXTREMA(T)                                 \
  SIM_INLINE T max(T a, T b) { return sim_max(a, b); } \
  SIM_INLINE T min(T a, T b) { return sim_min(a, b); }
SIM_EXTREMA(int)
SIM_EXTREMA(unsigned)
SIM_EXTREMA(long)
SIM_EXTREMA(unsigned long)
SIM_EXTREMA(long long)
SIM_EXTREMA(unsigned long long)
SIM_EXTREMA(float)
SIM_EXTREMA(double)

SIM_INLINE int __float_as_int(float x) { return sim_bits<int>(x); }
SIM_INLINE unsigned __float_as_uint(float x) { return sim_bits<unsigned>(x); }
SIM_INLINE float __int_as_float(int x) { return sim_bits<float>(x); }
SIM_INLINE float __uint_as_float(unsigned x) { return sim_bits<float>(x); }
SIM_INLINE long long __double_as_longlong(double x) { return sim_bits<long long>(x); }
SIM_INLINE double __longlong_as_double(long long x) { return sim_bits<double>(x); }
SIM_INLINE int __float2int_rn(float x) { return sim_to_integer<int>(rintf(x)); }
SIM_INLINE int __float2int_rz(float x) { return sim_to_integer<int>(truncf(x)); }
SIM_INLINE unsigned __float2uint_rn(float x) { return sim_to_integer<unsigned>(rintf(x)); }
SIM_INLINE float __int2float_rn(int x) { return float(x); }
SIM_INLINE float __uint2float_rn(unsigned x) { return float(x); }
SIM_INLINE float __double2float_rn(double x) { return float(x); }
SIM_INLINE unsigned __umulhi(unsigned a, unsigned b) {
  return unsigned((unsigned long long)a * b >> 32);
}
SIM_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
SIM_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
SIM_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
SIM_INLINE int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
SIM_INLINE int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
SIM_INLINE int __ffs(int x) { return __builtin_ffs(x); }
SIM_INLINE unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1u) << (31 - i);
  return result;
}

// A .cu file for NVRTC names the fixed-width types itself, with `long long` for 64 bits; the C
// library here has `long`. Renamed, both may stand side by side.
typedef long long sim_int64_t;
typedef unsigned long long sim_uint64_t;
#define int64_t sim_int64_t
#define uint64_t sim_uint64_t
