// y = residual + scale * silu(x): four elements at a time, then what is left over
__device__ __forceinline__ float silu(float v) { return v / (1.0f + __expf(-v)); }

extern "C" __global__ void __launch_bounds__(128)
scaled_silu(const float* __restrict__ x, const float* __restrict__ residual,
            float* __restrict__ y, float scale, long long n) {
  const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const long long step = (long long)gridDim.x * blockDim.x, groups = n / 4;
  const float4* x4 = reinterpret_cast<const float4*>(x);
  const float4* r4 = reinterpret_cast<const float4*>(residual);
  for (long long g = first; g < groups; g += step) {
    const float4 a = x4[g], r = r4[g];
    float4 out;
    out.x = fmaf(scale, silu(a.x), r.x);
    out.y = fmaf(scale, silu(a.y), r.y);
    out.z = fmaf(scale, silu(a.z), r.z);
    out.w = fmaf(scale, silu(a.w), r.w);
    reinterpret_cast<float4*>(y)[g] = out;
  }
  for (long long i = groups * 4 + first; i < n; i += step) {
    y[i] = fmaf(scale, silu(x[i]), residual[i]);
  }
}
