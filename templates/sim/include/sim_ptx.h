// sim_ptx.h: PTX instructions as functions, for translated kernels.
#pragma once
#include "sim_device.h"
#include "sim_export.h"
#include "sim_math.h"

// ---- registers -------------------------------------------------------------------------------
// A register has a width; an instruction reads it as a type.

struct ptx_f16 {
  uint16_t bits;
};
struct ptx_bf16 {
  uint16_t bits;
};

template <class T, class R> SIM_INLINE T ptx_as(R value) {
  if constexpr (sizeof(T) == sizeof(R)) {
    return sim_bits<T>(value);
  } else if constexpr (std::is_class<T>::value) {
    return sim_bits<T>(uint16_t(value));
  } else {
    return T(value);
  }
}
template <class T, class R> SIM_INLINE void ptx_set(R& place, T value) {
  if constexpr (sizeof(T) == sizeof(R)) {
    place = sim_bits<R>(value);
  } else if constexpr (std::is_class<T>::value) {
    place = R(value.bits);
  } else {
    place = R(value);  // a signed value extends its sign
  }
}

// ---- memory ----------------------------------------------------------------------------------

template <class T, int N> struct ptx_vector {
  T item[N];
};
// A parameter or an array in memory, with its declared size and alignment.
template <int BYTES, int ALIGNMENT> struct alignas(ALIGNMENT) ptx_bytes {
  unsigned char byte[BYTES];
};
// Shared arrays end in a gap, so that an overrun meets no neighbour.
template <int BYTES> struct alignas(16) ptx_shared {
  unsigned char byte[BYTES + 32];
};

// Shared addresses may be 32 bits wide: the low half of the host's address.
extern "C" thread_local char sim_anchor;
SIM_INLINE uint64_t ptx_shared_address(uint64_t address) {
  const uint64_t anchor = uint64_t(&sim_anchor);
  return anchor + int64_t(int32_t(uint32_t(address) - uint32_t(anchor)));
}

#ifdef SIM_CHECKED
#define PTX_CHECK(address, bytes, kind) sim_access((const void*)(address), bytes, kind)
#else
#define PTX_CHECK(address, bytes, kind) ((void)0)
#endif

template <class T, int N> SIM_INLINE ptx_vector<T, N> ptx_load_unchecked(uint64_t address) {
  ptx_vector<T, N> value;
  __builtin_memcpy(&value, (const void*)address, sizeof value);
  return value;
}
template <class T, int N> SIM_INLINE ptx_vector<T, N> ptx_load(uint64_t address, int kind) {
  PTX_CHECK(address, sizeof(T) * N, kind);
  if (kind == SIM_VOLATILE_READ) asm volatile("" : : : "memory");
  return ptx_load_unchecked<T, N>(address);
}
template <class T, int N>
SIM_INLINE void ptx_store_unchecked(uint64_t address, ptx_vector<T, N> value) {
  __builtin_memcpy((void*)address, &value, sizeof value);
}
template <class T, int N>
SIM_INLINE void ptx_store(uint64_t address, ptx_vector<T, N> value, int kind) {
  PTX_CHECK(address, sizeof(T) * N, kind);
  ptx_store_unchecked(address, value);
  if (kind == SIM_VOLATILE_WRITE) asm volatile("" : : : "memory");
}

// ---- integers --------------------------------------------------------------------------------

template <class T> SIM_INLINE T ptx_mul_hi(T a, T b) {
  return T((__int128(a) * __int128(b)) >> (8 * sizeof(T)));
}
SIM_INLINE uint64_t ptx_mul_hi(uint64_t a, uint64_t b) {
  return uint64_t(((unsigned __int128)a * b) >> 64);
}
// Shifts by the width or more leave zeros, or copies of the sign.
template <class T> SIM_INLINE T ptx_shl(T a, uint32_t by) {
  return by < 8 * sizeof(T) ? T(a << by) : T(0);
}
template <class T> SIM_INLINE T ptx_shr(T a, uint32_t by) {
  if (by < 8 * sizeof(T)) return T(a >> by);
  return a < 0 ? T(-1) : T(0);
}
SIM_INLINE uint32_t ptx_funnel_left(uint32_t low, uint32_t high, uint32_t by) {
  return uint32_t((((uint64_t(high) << 32) | low) << by) >> 32);
}
SIM_INLINE uint32_t ptx_funnel_right(uint32_t low, uint32_t high, uint32_t by) {
  return uint32_t(((uint64_t(high) << 32) | low) >> by);
}
SIM_INLINE uint32_t ptx_clamp_shift(uint32_t by) { return by < 32 ? by : 32; }
template <int TABLE> SIM_INLINE uint32_t ptx_lop3(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t result = 0;
  for (int row = 0; row < 8; ++row) {
    if (TABLE >> row & 1) {
      result |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
    }
  }
  return result;
}
SIM_INLINE uint32_t ptx_permute(uint32_t a, uint32_t b, uint32_t selectors) {
  const uint64_t bytes = (uint64_t(b) << 32) | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t selector = selectors >> (4 * i) & 15;
    const uint32_t byte = uint32_t(bytes >> (8 * (selector & 7))) & 255;
    const uint32_t chosen = selector & 8 ? (byte & 128 ? 255 : 0) : byte;
    result |= chosen << (8 * i);
  }
  return result;
}
// Bit fields: position and length are taken from their low 8 bits.
template <class T> SIM_INLINE T ptx_extract(T a, uint32_t position, uint32_t length) {
  constexpr uint32_t width = 8 * sizeof(T);
  const uint32_t first = position & 255, count = length & 255;
  T result = 0;
  for (uint32_t i = 0; i < width; ++i) {
    // Past the field, or past the register, the sign follows (zero for unsigned types).
    const uint32_t last = first + count - 1 < width - 1 ? first + count - 1 : width - 1;
    const uint32_t sign = std::is_signed<T>::value && count ? uint32_t(a >> last) & 1 : 0;
    const uint32_t bit = i < count && first + i < width ? uint32_t(a >> (first + i)) & 1 : sign;
    result = T(result | T(T(bit) << i));
  }
  return result;
}
template <class T> SIM_INLINE T ptx_insert(T a, T b, uint32_t position, uint32_t length) {
  constexpr uint32_t width = 8 * sizeof(T);
  const uint32_t first = position & 255, count = length & 255;
  for (uint32_t i = 0; i < count && first + i < width; ++i) {
    b = T((b & ~(T(1) << (first + i))) | ((a >> i & 1) << (first + i)));
  }
  return b;
}
template <class T> SIM_INLINE uint32_t ptx_leading_zeros(T a) {
  if (!a) return 8 * sizeof(T);
  return sizeof(T) == 4 ? uint32_t(__builtin_clz(uint32_t(a))) : uint32_t(__builtin_clzll(a));
}
template <class T> SIM_INLINE uint32_t ptx_highest_bit(T a) {
  const T bits = a < 0 ? T(~a) : a;
  if (!bits) return ~0u;
  using Unsigned = typename std::make_unsigned<T>::type;
  return uint32_t(8 * sizeof(T) - 1) - ptx_leading_zeros(Unsigned(bits));
}
template <class T> SIM_INLINE T ptx_reverse_bits(T a) {
  T result = 0;
  for (uint32_t i = 0; i < 8 * sizeof(T); ++i) {
    result = T(result | T((a >> i & 1) << (8 * sizeof(T) - 1 - i)));
  }
  return result;
}

template <class To, class From> SIM_INLINE To ptx_saturate_to(From a) {
  constexpr bool is_signed = std::is_signed<To>::value;
  constexpr __int128 most = (__int128(1) << (8 * sizeof(To) - is_signed)) - 1;
  constexpr __int128 least = is_signed ? -most - 1 : __int128(0);
  return To(a < least ? least : __int128(a) > most ? most : __int128(a));
}

// ---- floating point --------------------------------------------------------------------------

template <class T> SIM_INLINE bool ptx_unordered(T a, T b) { return a != a || b != b; }
template <class T> SIM_INLINE T ptx_saturate(T x) { return sim_min(sim_max(x, T(0)), T(1)); }
template <class T> SIM_INLINE T ptx_max_nan(T a, T b) {
  return ptx_unordered(a, b) ? T(NAN) : sim_max(a, b);
}
template <class T> SIM_INLINE T ptx_min_nan(T a, T b) {
  return ptx_unordered(a, b) ? T(NAN) : sim_min(a, b);
}
SIM_INLINE float ptx_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
SIM_INLINE double ptx_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
// The hardware conversions keep f16 subnormals whatever the flush mode. (The intrinsics' header
// would double the time that a kernel takes to compile.)
typedef float ptx_floats __attribute__((vector_size(16)));
typedef short ptx_halves __attribute__((vector_size(16)));
SIM_INLINE float ptx_widen(ptx_f16 h) {
  return __builtin_ia32_vcvtph2ps(ptx_halves{short(h.bits)})[0];
}
SIM_INLINE float ptx_widen(ptx_bf16 h) { return sim_bits<float>(uint32_t(h.bits) << 16); }
SIM_INLINE ptx_f16 ptx_to_f16(float x) {
  constexpr int nearest = 0;
  return {uint16_t(x != x ? 0x7fff : __builtin_ia32_vcvtps2ph(ptx_floats{x}, nearest)[0])};
}
SIM_INLINE ptx_bf16 ptx_to_bf16(float x) {
  const uint32_t u = sim_bits<uint32_t>(x), up = 0x7fff + (u >> 16 & 1);
  return {uint16_t(x != x ? 0x7fff : (u + up) >> 16)};
}

// ---- warps -----------------------------------------------------------------------------------

// `clamp` holds the segment in its bits 8 to 12, as 32 less its width.
SIM_INLINE uint32_t ptx_shuffle(int op, uint32_t value, uint32_t by, uint32_t clamp,
                                uint32_t mask) {
  return uint32_t(sim_warp(op, mask, value, int(by), int(32 - (clamp >> 8 & 31))));
}
// Whether the shuffle's source lies within the segment.
SIM_INLINE bool ptx_shuffle_in_range(int op, uint32_t by, uint32_t clamp) {
  const uint32_t width = 32 - (clamp >> 8 & 31), lane = sim_here.lane;
  const uint32_t first = lane & ~(width - 1), last = first + width - 1;
  if (op == SIM_SHUFFLE_UP) return lane >= first + by;
  if (op == SIM_SHUFFLE_DOWN) return lane + by <= last;
  return op != SIM_SHUFFLE_XOR || (lane ^ by) <= last;
}
