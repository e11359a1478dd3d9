// one warp per query row: scores of 32 keys at a time, kept in shared memory between two phases
constexpr int width = 16, warps = 4;

struct half_bits {
  unsigned short bits;
};
__device__ __forceinline__ float widen(half_bits h) {
  const unsigned sign = (h.bits & 0x8000u) << 16, rest = h.bits & 0x7fffu;
  const unsigned small = __float_as_uint((float)(int)rest * 5.9604644775390625e-8f);
  return __uint_as_float(sign | (rest < 0x400u ? small : (rest << 13) + (112u << 23)));
}
extern "C" __global__ void attention(const half_bits* __restrict__ q,
                                     const half_bits* __restrict__ k,
                                     const half_bits* __restrict__ v, float* __restrict__ out,
                                     int length) {
  __shared__ float weights[warps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = blockIdx.x * warps + warp;
  if (row >= length) return;
  float top = -3.0e38f, total = 0.0f, sum = 0.0f;
  for (int first = 0; first <= row; first += 32) {
    const int key = first + lane;
    float score = -3.0e38f;
    if (key <= row) {
      score = 0.0f;
      for (int d = 0; d < width; ++d) {
        score = fmaf(widen(q[row * width + d]), widen(k[key * width + d]), score);
      }
    }
    float most = score;
    for (int step = 16; step > 0; step >>= 1) {
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    }
    const float next = fmaxf(top, most), shrink = __expf(top - next);
    const float weight = key <= row ? __expf(score - next) : 0.0f;
    float added = weight;
    for (int step = 16; step > 0; step >>= 1) {
      added += __shfl_xor_sync(0xffffffffu, added, step);
    }
    total = total * shrink + added;
    top = next;
    weights[warp][lane] = weight;
    __syncwarp();
    sum *= shrink;
    for (int j = 0; j < 32 && first + j <= row; ++j) {
      sum = fmaf(weights[warp][j], widen(v[(first + j) * width + lane % width]), sum);
    }
    __syncwarp();
  }
  if (lane < width) out[row * width + lane] = sum / total;
}
