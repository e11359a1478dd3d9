// bf16 gradients divided by the loss scale; a ballot finds infinities
__device__ __forceinline__ float widen(unsigned short bits) {
  return __uint_as_float((unsigned)bits << 16);
}
extern "C" __global__ void unscale(const unsigned short* __restrict__ g, float* __restrict__ out,
                                   float inverse, unsigned* __restrict__ found, int n) {
  const int rounded = (n + 31) / 32 * 32;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < rounded; i += gridDim.x * blockDim.x) {
    float value = 0.0f;
    if (i < n) {
      value = widen(g[i]) * inverse;
      out[i] = value;
    }
    const unsigned bad = __ballot_sync(0xffffffffu, !isfinite(value));
    if (bad != 0 && threadIdx.x % 32 == 0) atomicOr(found, 1u);
  }
}
