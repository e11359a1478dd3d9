// c = a @ b: tiles of 32 x 32 x 16, a block of 8 x 8 threads with 4 x 4 results each
constexpr int tile = 32, depth = 16, threads = 64;

extern "C" __global__ void __launch_bounds__(threads)
gemm(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n,
     int k) {
  __shared__ __align__(16) float left[depth][tile + 4];
  __shared__ __align__(16) float right[depth][tile];
  const int row0 = blockIdx.y * tile, column0 = blockIdx.x * tile;
  const int tx = threadIdx.x % 8, ty = threadIdx.x / 8;
  float sum[4][4] = {};
  for (int k0 = 0; k0 < k; k0 += depth) {
    for (int e = threadIdx.x; e < tile * depth; e += threads) {
      const int i = e / depth, p = e % depth;
      left[p][i] = row0 + i < m && k0 + p < k ? a[(long long)(row0 + i) * k + k0 + p] : 0.0f;
    }
    for (int e = threadIdx.x; e < depth * tile; e += threads) {
      const int p = e / tile, j = e % tile;
      right[p][j] = k0 + p < k && column0 + j < n ? b[(long long)(k0 + p) * n + column0 + j] : 0.0f;
    }
    __syncthreads();
    for (int p = 0; p < depth; ++p) {
      const float4 l = *reinterpret_cast<const float4*>(&left[p][ty * 4]);
      const float4 r = *reinterpret_cast<const float4*>(&right[p][tx * 4]);
      const float ls[4] = {l.x, l.y, l.z, l.w}, rs[4] = {r.x, r.y, r.z, r.w};
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(ls[i], rs[j], sum[i][j]);
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i) {
    const int row = row0 + ty * 4 + i;
    for (int j = 0; j < 4; ++j) {
      const int column = column0 + tx * 4 + j;
      if (row < m && column < n) c[(long long)row * n + column] = sum[i][j];
    }
  }
}
