// bpc_storage.h: storage types narrower than the arithmetic, and bit masks.
//
// Arithmetic runs in float or double; f16 and bf16 exist in memory only. Conversions round to
// nearest even, keep f16 subnormals, keep NaN (made quiet), and give the same bits with and
// without conversion instructions. Loops over bpc_load and bpc_store vectorise. The text is taken
// by C++ and CUDA compilers alike.
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
  uint64_t eight = 0;
  for (int i = 0; i < 8; ++i) eight |= uint64_t(flags[i]) << (8 * i);  // one load
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
