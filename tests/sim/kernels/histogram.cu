// counts per block in shared memory, then added to the whole
extern "C" __global__ void histogram(const int* __restrict__ values, unsigned* __restrict__ counts,
                                     int* __restrict__ top, int n, int bins) {
  extern __shared__ unsigned mine[];
  for (int b = threadIdx.x; b < bins; b += blockDim.x) mine[b] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    atomicAdd(&mine[values[i]], 1u);
    atomicMax(top, values[i]);
  }
  __syncthreads();
  for (int b = threadIdx.x; b < bins; b += blockDim.x) {
    if (mine[b] != 0) atomicAdd(&counts[b], mine[b]);
  }
}
