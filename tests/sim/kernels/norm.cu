// gradient of (x - mean) * rstd * gain: a warp per row, column sums in dynamic shared memory
extern "C" __global__ void norm_rows(const float* __restrict__ x, const float* __restrict__ g,
                                     const float* __restrict__ gain,
                                     const float* __restrict__ mean,
                                     const float* __restrict__ rstd, float* __restrict__ dx,
                                     float* __restrict__ partial, int rows, int columns) {
  extern __shared__ float columns_sum[];
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    columns_sum[c] = 0.0f;
  }
  __syncthreads();
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  for (int r = blockIdx.x * warps + threadIdx.x / 32; r < rows; r += gridDim.x * warps) {
    const long long row = (long long)r * columns;
    float s = 0.0f, t = 0.0f;
    for (int c = lane; c < columns; c += 32) {
      const float d = g[row + c] * gain[c], h = (x[row + c] - mean[r]) * rstd[r];
      s += d;
      t = fmaf(d, h, t);
    }
    for (int step = 16; step > 0; step >>= 1) {
      s += __shfl_down_sync(0xffffffffu, s, step);
      t += __shfl_down_sync(0xffffffffu, t, step);
    }
    s = __shfl_sync(0xffffffffu, s, 0) / columns;
    t = __shfl_sync(0xffffffffu, t, 0) / columns;
    for (int c = lane; c < columns; c += 32) {
      const float h = (x[row + c] - mean[r]) * rstd[r];
      dx[row + c] = rstd[r] * (g[row + c] * gain[c] - s - h * t);
      atomicAdd(&columns_sum[c], g[row + c] * h);
    }
  }
  __syncthreads();
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    partial[(long long)blockIdx.x * columns + c] = columns_sum[c];
  }
}
extern "C" __global__ void norm_columns(const float* __restrict__ partial,
                                        float* __restrict__ dgain, int blocks, int columns) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= columns) return;
  float sum = 0.0f;
  for (int b = 0; b < blocks; ++b) sum += partial[(long long)b * columns + c];
  dgain[c] = sum;
}
