// bpc_types.h: storage types narrower than the arithmetic, bit masks, native vectors.
//
// Arithmetic runs in float or double; f16 and bf16 exist in memory only. Conversions round to
// nearest even, keep f16 subnormals, keep NaN (made quiet), and give the same bits with and
// without conversion instructions. Loops over bpc_load and bpc_store vectorise.
#pragma once
#include "bpc_math.h"

struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

// ---- f16 -------------------------------------------------------------------------------------
// In integers: GCC vectorises this, but not its own _Float16 conversions.

BPC_INLINE float bpc_widen(f16 h) {
  const uint32_t sign = uint32_t(h.bits & 0x8000u) << 16, rest = h.bits & 0x7fffu;
  const uint32_t normal = (rest << 13) + (112u << 23);
  const uint32_t infinite = (rest << 13) | 0x7f800000u | (rest > 0x7c00u ? 0x400000u : 0u);
  const uint32_t subnormal = bpc_bits(float(int32_t(rest)) * 0x1p-24f);  // also zero
  const uint32_t finite = rest < 0x400u ? subnormal : normal;
  return bpc_from_bits(sign | (rest >= 0x7c00u ? infinite : finite));
}
BPC_INLINE f16 bpc_to_f16(float value) {
  const uint32_t u = bpc_bits(value), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  const uint32_t normal = (a - (112u << 23) + 0xfffu + ((a >> 13) & 1u)) >> 13;
  // Adding 0.5 leaves the multiple of 2^-24 nearest to the value in the low mantissa bits.
  const uint32_t subnormal = bpc_bits(bpc_from_bits(a) + 0.5f) - 0x3f000000u;
  const uint32_t nan = 0x7e00u | ((a >> 13) & 0x3ffu);
  const uint32_t finite = a < (113u << 23) ? subnormal : normal;
  const uint32_t bounded = a >= (143u << 23) ? 0x7c00u : finite;
  return {uint16_t(sign | (a > 0x7f800000u ? nan : bounded))};
}

// ---- bf16 ------------------------------------------------------------------------------------

BPC_INLINE float bpc_widen(bf16 h) { return bpc_from_bits(uint32_t(h.bits) << 16); }
BPC_INLINE bf16 bpc_to_bf16(float value) {
  const uint32_t u = bpc_bits(value);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return {uint16_t((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded)};
}

// A double cut to 24 bits, the last of which is set if anything was cut ("rounding to odd"), so
// that a second rounding to fewer bits is right.
BPC_INLINE float bpc_round_to_odd(double value) {
  const uint64_t u = bpc_bits(value), cut = (uint64_t(1) << 29) - 1;
  const uint64_t sticky = (u & cut) != 0 ? uint64_t(1) << 29 : 0;
  const float odd = float(bpc_from_bits((u & ~cut) | sticky));
  return value == value ? odd : float(value);
}

// ---- load and store --------------------------------------------------------------------------

BPC_INLINE float bpc_load(const float* p, long i) { return p[i]; }
BPC_INLINE double bpc_load(const double* p, long i) { return p[i]; }
BPC_INLINE float bpc_load(const f16* p, long i) { return bpc_widen(p[i]); }
BPC_INLINE float bpc_load(const bf16* p, long i) { return bpc_widen(p[i]); }
BPC_INLINE int32_t bpc_load(const int32_t* p, long i) { return p[i]; }
BPC_INLINE int64_t bpc_load(const int64_t* p, long i) { return p[i]; }

template <class V> BPC_INLINE void bpc_store(float* p, long i, V value) { p[i] = float(value); }
template <class V> BPC_INLINE void bpc_store(double* p, long i, V value) { p[i] = double(value); }
template <class V> BPC_INLINE void bpc_store(int32_t* p, long i, V value) { p[i] = int32_t(value); }
template <class V> BPC_INLINE void bpc_store(int64_t* p, long i, V value) { p[i] = int64_t(value); }
BPC_INLINE void bpc_store(f16* p, long i, float value) { p[i] = bpc_to_f16(value); }
BPC_INLINE void bpc_store(f16* p, long i, double value) {
  p[i] = bpc_to_f16(bpc_round_to_odd(value));
}
BPC_INLINE void bpc_store(bf16* p, long i, float value) { p[i] = bpc_to_bf16(value); }
BPC_INLINE void bpc_store(bf16* p, long i, double value) {
  p[i] = bpc_to_bf16(bpc_round_to_odd(value));
}

// A value as its storage type would give it back: the rounding of a result that stays in a
// register. bpc_round<bf16>(x) is bpc_load of what bpc_store wrote.
template <class Storage, class V> BPC_INLINE auto bpc_round(V value) {
  Storage cell;
  bpc_store(&cell, 0, value);
  return bpc_load(&cell, 0);
}

// ---- bit masks: element i is bit i % 8 of byte i / 8 ------------------------------------------

BPC_INLINE bool bpc_bit_load(const uint8_t* p, long i) { return ((p[i >> 3] >> (i & 7)) & 1) != 0; }

// Eight flags (each 0 or 1) as one byte: the product moves flag i to bit 56 + i.
BPC_INLINE uint8_t bpc_bits_pack(const uint8_t* flags) {
  uint64_t eight;
  __builtin_memcpy(&eight, flags, sizeof eight);
  return uint8_t((eight * uint64_t(0x0102040810204080)) >> 56);
}

// Write `count` flags (each 0 or 1) as the mask's elements from `first` on. Whole bytes are
// written where both `first` and the piece are multiples of 8; bits of a byte outside the range
// are kept. Two threads must not write bits of one byte.
BPC_INLINE void bpc_bits_store(uint8_t* p, long first, const uint8_t* flags, long count) {
  long i = 0;
  if ((first & 7) == 0) {
    for (; i + 8 <= count; i += 8) p[(first + i) >> 3] = bpc_bits_pack(flags + i);
  }
  for (; i < count; ++i) {
    uint8_t& byte = p[(first + i) >> 3];
    const int bit = int((first + i) & 7);
    byte = uint8_t((byte & ~(1 << bit)) | (flags[i] << bit));
  }
}

// ---- native vectors --------------------------------------------------------------------------

#if defined(__AVX512F__)
#define BPC_VECTOR_BYTES 64
#elif defined(__AVX__)
#define BPC_VECTOR_BYTES 32
#else
#define BPC_VECTOR_BYTES 16
#endif
#define BPC_NOINLINE static __attribute__((noinline, unused))

template <class T> struct bpc_vector;
template <> struct bpc_vector<float> {
  typedef float type __attribute__((vector_size(BPC_VECTOR_BYTES)));
};
template <> struct bpc_vector<double> {
  typedef double type __attribute__((vector_size(BPC_VECTOR_BYTES)));
};
template <class T> using bpc_vec = typename bpc_vector<T>::type;
template <class T> constexpr long bpc_width = BPC_VECTOR_BYTES / long(sizeof(T));

template <class T> BPC_INLINE bpc_vec<T> bpc_vec_load(const T* p) {
  bpc_vec<T> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class T> BPC_INLINE void bpc_vec_store(T* p, bpc_vec<T> v) {
  __builtin_memcpy(p, &v, sizeof v);
}
// x in every lane: x - 0 is x for every x, and compilers turn it into a plain broadcast.
template <class T> BPC_INLINE bpc_vec<T> bpc_broadcast(T x) { return x - bpc_vec<T>{}; }

// a * b + c in every lane, rounded once. GCC has no generic spelling of it that survives
// -ffp-contract=off, hence its names for the instruction; elsewhere lane by lane.
#if defined(__GNUC__) && !defined(__clang__) && defined(__FMA__)
BPC_INLINE bpc_vec<float> bpc_vec_fma(bpc_vec<float> a, bpc_vec<float> b, bpc_vec<float> c) {
#if BPC_VECTOR_BYTES == 64
  return __builtin_ia32_vfmaddps512_mask(a, b, c, uint16_t(-1), 4);  // 4: current rounding mode
#else
  return __builtin_ia32_vfmaddps256(a, b, c);
#endif
}
BPC_INLINE bpc_vec<double> bpc_vec_fma(bpc_vec<double> a, bpc_vec<double> b, bpc_vec<double> c) {
#if BPC_VECTOR_BYTES == 64
  return __builtin_ia32_vfmaddpd512_mask(a, b, c, uint8_t(-1), 4);
#else
  return __builtin_ia32_vfmaddpd256(a, b, c);
#endif
}
#else
template <class V> BPC_INLINE V bpc_vec_fma(V a, V b, V c) {
#if defined(__clang__) && __has_builtin(__builtin_elementwise_fma)
  return __builtin_elementwise_fma(a, b, c);
#else
  V r;
  for (unsigned i = 0; i < sizeof(V) / sizeof(a[0]); ++i) r[i] = bpc_fma(a[i], b[i], c[i]);
  return r;
#endif
}
#endif

// `bpc_width<Acc>` consecutive elements as a vector of the accumulation type. Vector arithmetic
// and single instructions where they exist; a loop through memory would stall on its own stores.
BPC_INLINE bpc_vec<float> bpc_vec_bf16(const bf16* p) {
  typedef uint16_t narrow __attribute__((vector_size(BPC_VECTOR_BYTES / 2)));
  typedef uint32_t wide __attribute__((vector_size(BPC_VECTOR_BYTES)));
  narrow bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return (bpc_vec<float>)(__builtin_convertvector(bits, wide) << 16);
}
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX512F__)
#define BPC_HAS_VEC_F16 1
BPC_INLINE bpc_vec<float> bpc_vec_f16(const f16* p) {
  typedef short narrow __attribute__((vector_size(32)));
  narrow bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return __builtin_ia32_vcvtph2ps512_mask(bits, bpc_vec<float>{}, uint16_t(-1), 4);
}
#elif defined(__GNUC__) && !defined(__clang__) && defined(__F16C__)
#define BPC_HAS_VEC_F16 1
BPC_INLINE bpc_vec<float> bpc_vec_f16(const f16* p) {
  typedef short narrow __attribute__((vector_size(16)));
  narrow bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return __builtin_ia32_vcvtph2ps256(bits);
}
#endif

template <class A, class B> constexpr bool bpc_same = false;
template <class A> constexpr bool bpc_same<A, A> = true;

template <class Acc, class T> BPC_INLINE bpc_vec<Acc> bpc_vec_widen(const T* p) {
  if constexpr (bpc_same<Acc, T>) {
    return bpc_vec_load(p);
  } else if constexpr (bpc_same<Acc, float> && bpc_same<T, bf16>) {
    return bpc_vec_bf16(p);
#ifdef BPC_HAS_VEC_F16
  } else if constexpr (bpc_same<Acc, float> && bpc_same<T, f16>) {
    return bpc_vec_f16(p);
#endif
  } else {
    alignas(64) Acc wide[bpc_width<Acc>];
    for (long i = 0; i < bpc_width<Acc>; ++i) wide[i] = Acc(bpc_load(p, i));
    return bpc_vec_load(wide);
  }
}

#if defined(__clang__)
#define BPC_SHUFFLE(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define BPC_SHUFFLE(x, y, ...) __builtin_shuffle(x, y, decltype(x < y){__VA_ARGS__})
#endif

// Interleave the lanes of two vectors: the low halves as x0 y0 x1 y1 ..., or the high halves.
#if BPC_VECTOR_BYTES == 64
BPC_INLINE bpc_vec<float> bpc_interleave_low(bpc_vec<float> x, bpc_vec<float> y) {
  return BPC_SHUFFLE(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
BPC_INLINE bpc_vec<float> bpc_interleave_high(bpc_vec<float> x, bpc_vec<float> y) {
  return BPC_SHUFFLE(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
BPC_INLINE bpc_vec<double> bpc_interleave_low(bpc_vec<double> x, bpc_vec<double> y) {
  return BPC_SHUFFLE(x, y, 0, 8, 1, 9, 2, 10, 3, 11);
}
BPC_INLINE bpc_vec<double> bpc_interleave_high(bpc_vec<double> x, bpc_vec<double> y) {
  return BPC_SHUFFLE(x, y, 4, 12, 5, 13, 6, 14, 7, 15);
}
#elif BPC_VECTOR_BYTES == 32
BPC_INLINE bpc_vec<float> bpc_interleave_low(bpc_vec<float> x, bpc_vec<float> y) {
  return BPC_SHUFFLE(x, y, 0, 8, 1, 9, 2, 10, 3, 11);
}
BPC_INLINE bpc_vec<float> bpc_interleave_high(bpc_vec<float> x, bpc_vec<float> y) {
  return BPC_SHUFFLE(x, y, 4, 12, 5, 13, 6, 14, 7, 15);
}
BPC_INLINE bpc_vec<double> bpc_interleave_low(bpc_vec<double> x, bpc_vec<double> y) {
  return BPC_SHUFFLE(x, y, 0, 4, 1, 5);
}
BPC_INLINE bpc_vec<double> bpc_interleave_high(bpc_vec<double> x, bpc_vec<double> y) {
  return BPC_SHUFFLE(x, y, 2, 6, 3, 7);
}
#else
BPC_INLINE bpc_vec<float> bpc_interleave_low(bpc_vec<float> x, bpc_vec<float> y) {
  return BPC_SHUFFLE(x, y, 0, 4, 1, 5);
}
BPC_INLINE bpc_vec<float> bpc_interleave_high(bpc_vec<float> x, bpc_vec<float> y) {
  return BPC_SHUFFLE(x, y, 2, 6, 3, 7);
}
BPC_INLINE bpc_vec<double> bpc_interleave_low(bpc_vec<double> x, bpc_vec<double> y) {
  return BPC_SHUFFLE(x, y, 0, 2);
}
BPC_INLINE bpc_vec<double> bpc_interleave_high(bpc_vec<double> x, bpc_vec<double> y) {
  return BPC_SHUFFLE(x, y, 1, 3);
}
#endif
