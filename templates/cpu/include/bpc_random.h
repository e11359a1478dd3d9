// bpc_random.h: many uniform numbers at once.
//
// bpc_uniform (bpc_math.h) makes a whole Philox block for each element; here each block is made
// once for its four elements, as many blocks at a time as a vector has 64-bit lanes.
#pragma once
#include "bpc_types.h"

typedef uint64_t bpc_vec_u64 __attribute__((vector_size(BPC_VECTOR_BYTES)));
typedef int32_t bpc_vec_i32 __attribute__((vector_size(BPC_VECTOR_BYTES)));
constexpr long bpc_philox_blocks = BPC_VECTOR_BYTES / 8;

// The 64-bit product of the low halves of the lanes; their high halves do not matter.
BPC_INLINE bpc_vec_u64 bpc_multiply_low(bpc_vec_u64 a, uint32_t b) {
  const bpc_vec_u64 factor = bpc_vec_u64{} + uint64_t(b);
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX512F__)
  return (bpc_vec_u64)__builtin_ia32_pmuludq512_mask(
      (bpc_vec_i32)a, (bpc_vec_i32)factor, (long long __attribute__((vector_size(64)))){}, 255);
#elif defined(__GNUC__) && !defined(__clang__) && defined(__AVX2__)
  return (bpc_vec_u64)__builtin_ia32_pmuludq256((bpc_vec_i32)a, (bpc_vec_i32)factor);
#else
  return (a & uint64_t(0xffffffff)) * factor;
#endif
}

// The numbers of bpc_philox_blocks blocks from `block` on.
BPC_INLINE void bpc_uniform_blocks(float* out, uint64_t key, uint32_t window, uint32_t stream,
                                   uint64_t block) {
  bpc_vec_u64 c0, c1, c2 = bpc_vec_u64{} + window, c3 = bpc_vec_u64{} + stream;
  for (long b = 0; b < bpc_philox_blocks; ++b) {
    c0[b] = block + uint64_t(b);
    c1[b] = (block + uint64_t(b)) >> 32;
  }
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const bpc_vec_u64 p0 = bpc_multiply_low(c0, 0xD2511F53u);
    const bpc_vec_u64 p1 = bpc_multiply_low(c2, 0xCD9E8D57u);
    c0 = (p1 >> 32) ^ c1 ^ uint64_t(k0);
    c2 = (p0 >> 32) ^ c3 ^ uint64_t(k1);
    c1 = p1;
    c3 = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const uint64_t half = 0xffffffff;
  const auto first = (bpc_vec<double>)((c0 & half) | (c1 << 32));
  const auto second = (bpc_vec<double>)((c2 & half) | (c3 << 32));
  const bpc_vec<double> parts[2] = {bpc_interleave_low(first, second),
                                    bpc_interleave_high(first, second)};
  for (long p = 0; p < 2; ++p) {
    const bpc_vec_i32 top = ((bpc_vec_i32)parts[p] >> 8) & 0xffffff;
    bpc_vec_store(out + p * bpc_width<float>,
                  __builtin_convertvector(top, bpc_vec<float>) * 0x1p-24f);
  }
}

// out[i] = bpc_uniform(seed, window, stream, first + i) for i < count.
BPC_NOINLINE void bpc_uniform_fill(float* out, int64_t seed, int64_t window, int64_t stream,
                                   int64_t first, int64_t count) {
  constexpr long piece = 4 * bpc_philox_blocks;
  int64_t i = 0;
  for (; i < count && ((first + i) & 3) != 0; ++i) {
    out[i] = bpc_uniform(seed, window, stream, first + i);
  }
  for (; i + piece <= count; i += piece) {
    bpc_uniform_blocks(out + i, uint64_t(seed), uint32_t(window), uint32_t(stream),
                       uint64_t(first + i) >> 2);
  }
  const int64_t rest = count - i;  // less than a piece
  for (int64_t j = 0; j < rest && j < piece; ++j) {
    out[i + j] = bpc_uniform(seed, window, stream, first + i + j);
  }
}
