// sim_math.h: device functions whose results do not depend on how a kernel was compiled.
#pragma once
#include "sim_device.h"

#include <math.h>
#include <string.h>

#include <type_traits>

template <class T, class U> SIM_INLINE T sim_bits(U value) {
  static_assert(sizeof(T) == sizeof(U), "the same number of bits");
  T result;
  __builtin_memcpy(&result, &value, sizeof result);
  return result;
}

// Approximate instructions: the nearest value here, moved within the device's stated error where
// a launch asks for that.
#ifdef SIM_CHECKED
#define SIM_APPROXIMATE(value, ulps) sim_perturb(value, ulps)
#else
#define SIM_APPROXIMATE(value, ulps) (value)
#endif
SIM_INLINE float sim_rsqrt(float x) { return SIM_APPROXIMATE(1.0f / sqrtf(x), 2.0f); }
SIM_INLINE float sim_exp2(float x) { return SIM_APPROXIMATE(exp2f(x), 2.0f); }
SIM_INLINE float sim_log2(float x) { return SIM_APPROXIMATE(log2f(x), 2.0f); }
SIM_INLINE float sim_sin(float x) { return SIM_APPROXIMATE(sinf(x), 4.0f); }
SIM_INLINE float sim_cos(float x) { return SIM_APPROXIMATE(cosf(x), 4.0f); }
SIM_INLINE float sim_tanh(float x) { return SIM_APPROXIMATE(tanhf(x), 4096.0f); }
SIM_INLINE float sim_reciprocal(float x) { return SIM_APPROXIMATE(1.0f / x, 1.0f); }
SIM_INLINE float sim_divide(float x, float y) { return SIM_APPROXIMATE(x / y, 2.0f); }

// The device's minimum and maximum: a number wins over NaN, and -0 is less than +0.
template <class T> SIM_INLINE T sim_max(T a, T b) {
  if (a == b) return std::is_floating_point<T>::value && signbit(double(a)) ? b : a;
  return a > b || b != b ? a : b;
}
template <class T> SIM_INLINE T sim_min(T a, T b) {
  if (a == b) return std::is_floating_point<T>::value && signbit(double(a)) ? a : b;
  return a < b || b != b ? a : b;
}

// Float to integer: saturating, NaN becomes 0.
template <class I, class F> SIM_INLINE I sim_to_integer(F x) {
  constexpr bool is_signed = std::is_signed<I>::value;
  const F limit = ldexp(F(1), int(sizeof(I)) * 8 - is_signed);
  constexpr I most = I(is_signed ? ~(I(1) << (sizeof(I) * 8 - 1)) : ~I(0));
  if (x != x) return 0;
  if (x >= limit) return most;
  if (x <= (is_signed ? -limit : F(0))) return is_signed ? I(~most) : I(0);
  return I(x);
}

// ---- atomics ---------------------------------------------------------------------------------
// One operating system thread runs all CUDA threads and does not change between them inside
// these functions, so that a plain read and write is atomic.

#ifdef SIM_CHECKED
#define SIM_ATOMIC template <class T> static __attribute__((noinline, unused)) SIM_UNCHECKED T
#define SIM_ANNOUNCE(p) sim_atomic(p, sizeof *(p), __builtin_return_address(0))
#else
#define SIM_ATOMIC template <class T> SIM_INLINE T
// Another CUDA thread may change the value, so a loop must read it again.
#define SIM_ANNOUNCE(p) asm volatile("" : : : "memory")
#endif
template <class T> struct sim_same {
  typedef T type;
};
template <class T> using sim_as = typename sim_same<T>::type;  // takes no part in deduction

#define SIM_ATOMIC_FUNCTION(NAME, RESULT)       \
  SIM_ATOMIC NAME(T* p, sim_as<T> value) {      \
    SIM_ANNOUNCE(p);                            \
    const T old = *p;                           \
    *p = T(RESULT);                             \
    return old;                                 \
  }
SIM_ATOMIC_FUNCTION(atomicAdd, old + value)
SIM_ATOMIC_FUNCTION(atomicSub, old - value)
SIM_ATOMIC_FUNCTION(atomicMin, old < value ? old : value)
SIM_ATOMIC_FUNCTION(atomicMax, old > value ? old : value)
SIM_ATOMIC_FUNCTION(atomicExch, value)
SIM_ATOMIC_FUNCTION(atomicAnd, old & value)
SIM_ATOMIC_FUNCTION(atomicOr, old | value)
SIM_ATOMIC_FUNCTION(atomicXor, old ^ value)
SIM_ATOMIC_FUNCTION(atomicInc, old >= value ? 0 : old + 1)
SIM_ATOMIC_FUNCTION(atomicDec, old == 0 || old > value ? value : old - 1)
SIM_ATOMIC atomicCAS(T* p, sim_as<T> compare, sim_as<T> value) {
  SIM_ANNOUNCE(p);
  const T old = *p;
  if (old == compare) *p = value;
  return old;
}
