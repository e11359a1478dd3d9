// global norm of several gradients (the last block adds the partial sums), then a clipped step
constexpr int most_tensors = 4;
struct tensors {
  float* weight[most_tensors];
  const float* gradient[most_tensors];
  int count[most_tensors];
  int tensors;
};
extern "C" __global__ void gradient_norm(tensors t, float* __restrict__ partial,
                                         unsigned* __restrict__ ticket,
                                         float* __restrict__ norm) {
  __shared__ float sums[128];
  __shared__ bool last;
  float sum = 0.0f;
  for (int which = 0; which < t.tensors; ++which) {
    for (int i = blockIdx.x * 128 + threadIdx.x; i < t.count[which]; i += gridDim.x * 128) {
      const float g = t.gradient[which][i];
      sum = fmaf(g, g, sum);
    }
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = 64; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sums[0];
    __threadfence();
    last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last) {
    sum = 0.0f;
    for (int b = threadIdx.x; b < gridDim.x; b += 128) sum += partial[b];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
      if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
      __syncthreads();
    }
    if (threadIdx.x == 0) *norm = sqrtf(sums[0]);
  }
}
extern "C" __global__ void step(tensors t, const float* __restrict__ norm, float rate) {
  const float scale = fminf(1.0f, 1.0f / *norm);
  for (int which = 0; which < t.tensors; ++which) {
    for (int i = blockIdx.x * 128 + threadIdx.x; i < t.count[which]; i += gridDim.x * 128) {
      t.weight[which][i] -= rate * scale * t.gradient[which][i];
    }
  }
}
