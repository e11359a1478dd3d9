// one block a row; the block's sum and maximum go through one shared value per warp
template <class Combine> __device__ __forceinline__ float across_warp(float v, Combine combine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    v = combine(v, __shfl_xor_sync(0xffffffffu, v, step));
  }
  return v;
}
template <class Combine>
__device__ __forceinline__ float across_block(float v, float neutral, float* slots,
                                              Combine combine) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  v = across_warp(v, combine);
  if (lane == 0) slots[warp] = v;
  __syncthreads();
  v = lane < warps ? slots[lane] : neutral;
  v = across_warp(v, combine);
  __syncthreads();
  return v;
}
extern "C" __global__ void softmax(const float* __restrict__ x, float* __restrict__ y, int columns) {
  __shared__ float slots[32];
  const auto larger = [](float a, float b) { return fmaxf(a, b); };
  const auto sum = [](float a, float b) { return a + b; };
  const float* from = x + (long long)blockIdx.x * columns;
  float* to = y + (long long)blockIdx.x * columns;
  float top = -3.0e38f;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) top = fmaxf(top, from[c]);
  top = across_block(top, -3.0e38f, slots, larger);
  float total = 0.0f;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) total += __expf(from[c] - top);
  total = across_block(total, 0.0f, slots, sum);
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    to[c] = __expf(from[c] - top) / total;
  }
}
