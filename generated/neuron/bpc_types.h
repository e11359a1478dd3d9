// bpc_types.h: storage types and native vectors of the CPU.
#pragma once
#include "bpc_storage.h"

// The same where the elements lie in lines of `line` that begin `pitch` elements apart, the first
// one at `base`: `first` counts elements without the padding behind each line.
BPC_INLINE void bpc_bits_store_lines(uint8_t* p, long base, long line, long pitch, long first,
                                     const uint8_t* flags, long count) {
  for (long done = 0; done < count;) {
    const long at = (first + done) % line, rest = count - done;
    const long piece = line - at < rest ? line - at : rest;
    bpc_bits_store(p, base + (first + done) / line * pitch + at, flags + done, piece);
    done += piece;
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
