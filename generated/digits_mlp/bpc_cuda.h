// bpc_cuda.h: what generated CUDA kernels share: packs, warps per row, products, convolutions.
//
// Numbers are defined as on every other target (see docs/conventions.md), so that a kernel gives
// the bits of its C++ twin: no contraction, reduction trees of the node, products as one chain of
// fused multiply-adds over ascending k. Threads of a block meet at __syncthreads, threads of a
// warp at full-mask operations; blocks never wait for each other. Where a result of all blocks is
// needed, the last block to draw a ticket goes on alone (bpc_last_block).
//
// Index arithmetic uses bpc_index, which the generated file chooses: 32 bits where every tensor
// has fewer than 2^31 elements.
#pragma once
#include "bpc_storage.h"

#define BPC_DEVICE static __device__ __forceinline__
constexpr unsigned bpc_full_mask = 0xffffffffu;
constexpr int bpc_warp = 32;

// ---- packs: neighbouring elements that one thread handles --------------------------------------

// Width elements, read and written 16 bytes at a time where the address allows it.
template <class T, int Width> struct __align__(16) bpc_pack {
  T at[Width];
};

template <class T, int Width>
BPC_DEVICE bool bpc_is_whole(const T* p, bpc_index count) {
  return count >= Width && (reinterpret_cast<unsigned long long>(p) & 15) == 0;
}

// Elements p[0 .. count) of a pack; the others stay unset and must not be used.
template <int Width, class T>
BPC_DEVICE bpc_pack<T, Width> bpc_load_pack(const T* p, bpc_index count) {
  bpc_pack<T, Width> pack;
  if (bpc_is_whole<T, Width>(p, count)) {
#pragma unroll
    for (int part = 0; part < Width * int(sizeof(T)) / 16; ++part) {
      reinterpret_cast<uint4*>(pack.at)[part] = reinterpret_cast<const uint4*>(p)[part];
    }
  } else {
#pragma unroll
    for (int q = 0; q < Width; ++q) {
      if (q < count) pack.at[q] = p[q];
    }
  }
  return pack;
}

template <int Width, class T>
BPC_DEVICE void bpc_store_pack(T* p, const bpc_pack<T, Width>& pack, bpc_index count) {
  if (bpc_is_whole<T, Width>(p, count)) {
#pragma unroll
    for (int part = 0; part < Width * int(sizeof(T)) / 16; ++part) {
      reinterpret_cast<uint4*>(p)[part] = reinterpret_cast<const uint4*>(pack.at)[part];
    }
  } else {
#pragma unroll
    for (int q = 0; q < Width; ++q) {
      if (q < count) p[q] = pack.at[q];
    }
  }
}

// ---- reductions over a row by one warp ---------------------------------------------------------

constexpr bpc_index bpc_row_slice = 4096;
constexpr bpc_index bpc_column_slice = 256;
constexpr int bpc_lanes = 16;

struct bpc_sum_rule {
  template <class T> static __device__ __forceinline__ T neutral() { return T(0); }
  template <class T> static __device__ __forceinline__ T combine(T a, T b) { return a + b; }
};
struct bpc_max_rule {
  template <class T> static __device__ __forceinline__ T neutral() { return -T(BPC_INF_F32); }
  template <class T> static __device__ __forceinline__ T combine(T a, T b) {
    return bpc_max(a, b);
  }
};

// The numbers that 16 lanes hold, folded by halves; both halves of the warp do the same.
template <class Rule, class T> BPC_DEVICE T bpc_fold_lanes(T mine) {
  const int lane = threadIdx.x % bpc_lanes;
#pragma unroll
  for (int step = bpc_lanes / 2; step > 0; step /= 2) {
    const T other = __shfl_xor_sync(bpc_full_mask, mine, step);
    mine = (lane & step) ? Rule::combine(other, mine) : Rule::combine(mine, other);
  }
  return mine;
}

// One warp reduces f(0), f(1), ... f(n - 1) in a fixed order: element j of a slice of
// bpc_row_slice goes to lane j % 16 (both halves of the warp do the same work, so that bits are
// those of 16 lanes), lanes fold by halves, slices follow in order. Every thread of the warp takes
// part and gets the result.
template <class T, class Rule, class F>
BPC_DEVICE T bpc_warp_reduce(bpc_index n, F&& f) {
  const int lane = threadIdx.x % bpc_lanes;
  T total = Rule::template neutral<T>();
  for (bpc_index slice = 0; slice < n; slice += bpc_row_slice) {
    const bpc_index end = n - slice < bpc_row_slice ? n : slice + bpc_row_slice;
    T mine = Rule::template neutral<T>();
    for (bpc_index j = slice + lane; j < end; j += bpc_lanes) mine = Rule::combine(mine, T(f(j)));
    total = Rule::combine(total, bpc_fold_lanes<Rule>(mine));
  }
  return total;
}
template <class T, class F> BPC_DEVICE T bpc_row_sum(bpc_index n, F&& f) {
  return bpc_warp_reduce<T, bpc_sum_rule>(n, f);
}
template <class T, class F> BPC_DEVICE T bpc_row_max(bpc_index n, F&& f) {
  return bpc_warp_reduce<T, bpc_max_rule>(n, f);
}

// The same sums for a short row of n elements that stays in registers: f(j, k) is the element
// j = lane % 16 + 16 k, which the thread holds as number k of its own.
template <class T, class Rule, int n, class F> BPC_DEVICE T bpc_warp_reduce_held(F&& f) {
  static_assert(n <= bpc_row_slice, "one slice");
  T mine = Rule::template neutral<T>();
#pragma unroll
  for (int k = 0; k * bpc_lanes < n; ++k) {
    const int j = threadIdx.x % bpc_lanes + k * bpc_lanes;
    if (j < n) mine = Rule::combine(mine, T(f(j, k)));
  }
  return Rule::combine(Rule::template neutral<T>(), bpc_fold_lanes<Rule>(mine));
}
template <class T, int n, class F> BPC_DEVICE T bpc_held_sum(F&& f) {
  return bpc_warp_reduce_held<T, bpc_sum_rule, n>(f);
}
template <class T, int n, class F> BPC_DEVICE T bpc_held_max(F&& f) {
  return bpc_warp_reduce_held<T, bpc_max_rule, n>(f);
}
// Element lane + 32 k of such a row, for all 32 lanes: even ones lie in the lower half of the warp.
template <class T, int count> BPC_DEVICE T bpc_held(const T (&held)[count], int k) {
  return threadIdx.x % bpc_warp < bpc_lanes ? held[2 * k] : held[2 * k + 1];
}

// A few partial results in order, by one thread: slices of bpc_column_slice, then their sums.
template <class Acc, class T> BPC_DEVICE Acc bpc_serial_sum(const T* values, bpc_index n) {
  Acc total = Acc(0);
  for (bpc_index start = 0; start < n; start += bpc_column_slice) {
    const bpc_index end = n - start < bpc_column_slice ? n : start + bpc_column_slice;
    Acc part = Acc(0);
    for (bpc_index j = start; j < end; ++j) part += Acc(bpc_load(values, j));
    total += part;
  }
  return total;
}

// ---- many tensors in one launch ----------------------------------------------------------------

// One launch serves `parts` tensors, each with blocks of its own: the first tensor's blocks, then
// the second's, and so on. The table has a row of `width` int64 for each tensor: the addresses of
// its operands, its number of elements, whether that is times the rows of the batch, and its first
// block. Returns the row of the tensor that `block` belongs to.
BPC_DEVICE const int64_t* bpc_find_part(const int64_t* table, int parts, int width, int block) {
  int part = 0;
  while (part + 1 < parts && table[(part + 1) * width + width - 1] <= block) ++part;
  return table + part * width;
}

// ---- the last block ----------------------------------------------------------------------------

// True in every thread of the block that finishes last, false in all others, which then return.
// Nobody waits. What other blocks wrote before is visible to the last: the barrier gathers a
// block's writes in thread 0, whose fence releases them with the ticket, and whose second fence
// acquires those of the blocks before. The ticket is 0 again when the launch ends.
BPC_DEVICE bool bpc_last_block(unsigned* ticket) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

// ---- matrix products ---------------------------------------------------------------------------

constexpr int bpc_block_m = 64, bpc_block_n = 64, bpc_block_k = 16;
constexpr int bpc_thread_m = 4, bpc_thread_n = 8;
constexpr int bpc_gemm_threads = bpc_block_m * bpc_block_n / (bpc_thread_m * bpc_thread_n);

// Block number `block` of the 64 x 64 blocks of C = A B, by 128 threads. A is m x k with
// A(i, p) = a[i a_row + p a_col], B is k x n likewise; a transposed factor has its strides swapped.
// Each thread owns 4 rows x 8 columns, so that a byte of packed conditions has one writer. Every
// sum is one chain of fused multiply-adds over ascending p, 16 of them from shared memory at a
// time. store(row, column, count, sums) takes `count` finished sums of one row, from `column` on.
template <class Acc, class TA, class TB, class Store>
BPC_DEVICE void bpc_gemm(int block, const TA* a, bpc_index a_row, bpc_index a_col, const TB* b,
                         bpc_index b_row, bpc_index b_col, bpc_index m, bpc_index n, bpc_index k,
                         Store&& store) {
  __shared__ __align__(16) Acc left[bpc_block_k][bpc_block_m];
  __shared__ __align__(16) Acc right[bpc_block_k][bpc_block_n];
  const bpc_index across = (n + bpc_block_n - 1) / bpc_block_n;
  const bpc_index m0 = block / across * bpc_block_m, n0 = block % across * bpc_block_n;
  if (m0 >= m) return;  // a short batch: the whole block has nothing to do
  const int tx = threadIdx.x % (bpc_block_n / bpc_thread_n);
  const int ty = threadIdx.x / (bpc_block_n / bpc_thread_n);
  Acc sum[bpc_thread_m][bpc_thread_n] = {};
  for (bpc_index k0 = 0; k0 < k; k0 += bpc_block_k) {
    for (int e = threadIdx.x; e < bpc_block_m * bpc_block_k; e += bpc_gemm_threads) {
      const int i = a_col == 1 ? e / bpc_block_k : e % bpc_block_m;
      const int p = a_col == 1 ? e % bpc_block_k : e / bpc_block_m;
      const bool inside = m0 + i < m && k0 + p < k;
      left[p][i] = inside ? Acc(bpc_load(a, (m0 + i) * a_row + (k0 + p) * a_col)) : Acc(0);
    }
    for (int e = threadIdx.x; e < bpc_block_n * bpc_block_k; e += bpc_gemm_threads) {
      const int j = b_row == 1 ? e / bpc_block_k : e % bpc_block_n;
      const int p = b_row == 1 ? e % bpc_block_k : e / bpc_block_n;
      const bool inside = n0 + j < n && k0 + p < k;
      right[p][j] = inside ? Acc(bpc_load(b, (k0 + p) * b_row + (n0 + j) * b_col)) : Acc(0);
    }
    __syncthreads();
    const int part = k - k0 < bpc_block_k ? int(k - k0) : bpc_block_k;
    for (int p = 0; p < part; ++p) {
#pragma unroll
      for (int i = 0; i < bpc_thread_m; ++i) {
        const Acc x = left[p][ty * bpc_thread_m + i];
#pragma unroll
        for (int j = 0; j < bpc_thread_n; ++j) {
          sum[i][j] = bpc_fma(x, right[p][tx * bpc_thread_n + j], sum[i][j]);
        }
      }
    }
    __syncthreads();
  }
  const bpc_index column = n0 + tx * bpc_thread_n;
#pragma unroll
  for (int i = 0; i < bpc_thread_m; ++i) {
    const bpc_index row = m0 + ty * bpc_thread_m + i;
    const int count = n - column < bpc_thread_n ? int(n - column) : bpc_thread_n;
    if (row < m && count > 0) store(row, column, count, sum[i]);
  }
}

// ---- convolutions ------------------------------------------------------------------------------

struct bpc_conv {
  int in_channels, height, width;
  int out_channels, out_height, out_width;
  int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
};

// One element of y: a chain over c, kh, kw; taps on padding are skipped.
template <class Acc, class TX, class TW>
BPC_DEVICE Acc bpc_conv_forward(const bpc_conv& s, const TX* x, const TW* w, bpc_index image, int o,
                                int oh, int ow) {
  Acc sum = Acc(0);
  for (int c = 0; c < s.in_channels; ++c) {
    for (int kh = 0; kh < s.kernel_h; ++kh) {
      const int h = oh * s.stride_h + kh - s.pad_h;
      if (h < 0 || h >= s.height) continue;
      for (int kw = 0; kw < s.kernel_w; ++kw) {
        const int v = ow * s.stride_w + kw - s.pad_w;
        if (v < 0 || v >= s.width) continue;
        const bpc_index at = ((image * s.in_channels + c) * s.height + h) * s.width + v;
        const int tap = ((o * s.in_channels + c) * s.kernel_h + kh) * s.kernel_w + kw;
        sum = bpc_fma(Acc(bpc_load(w, tap)), Acc(bpc_load(x, at)), sum);
      }
    }
  }
  return sum;
}

// One element of dx: a chain over o, kh, kw; taps between strides are skipped.
template <class Acc, class TY, class TW>
BPC_DEVICE Acc bpc_conv_input_gradient(const bpc_conv& s, const TY* dy, const TW* w,
                                       bpc_index image, int c, int h, int v) {
  Acc sum = Acc(0);
  for (int o = 0; o < s.out_channels; ++o) {
    for (int kh = 0; kh < s.kernel_h; ++kh) {
      const int down = h + s.pad_h - kh;
      if (down < 0 || down % s.stride_h != 0 || down / s.stride_h >= s.out_height) continue;
      for (int kw = 0; kw < s.kernel_w; ++kw) {
        const int right = v + s.pad_w - kw;
        if (right < 0 || right % s.stride_w != 0 || right / s.stride_w >= s.out_width) continue;
        const bpc_index line = (image * s.out_channels + o) * s.out_height + down / s.stride_h;
        const int tap = ((o * s.in_channels + c) * s.kernel_h + kh) * s.kernel_w + kw;
        const Acc g = Acc(bpc_load(dy, line * s.out_width + right / s.stride_w));
        sum = bpc_fma(Acc(bpc_load(w, tap)), g, sum);
      }
    }
  }
  return sum;
}

// One element of dw by one warp: lane ow % 16 takes n, oh, ow in order; lanes fold by halves.
template <class Acc, class TX, class TY>
BPC_DEVICE Acc bpc_conv_weight_gradient(const bpc_conv& s, const TX* x, const TY* dy,
                                        bpc_index images, int o, int c, int kh, int kw) {
  const int lane = threadIdx.x % bpc_lanes;
  Acc mine = Acc(0);
  for (bpc_index n = 0; n < images; ++n) {
    for (int oh = 0; oh < s.out_height; ++oh) {
      const int h = oh * s.stride_h + kh - s.pad_h;
      if (h < 0 || h >= s.height) continue;
      for (int ow = lane; ow < s.out_width; ow += bpc_lanes) {
        const int v = ow * s.stride_w + kw - s.pad_w;
        if (v < 0 || v >= s.width) continue;
        const bpc_index line = (n * s.out_channels + o) * s.out_height + oh;
        const bpc_index at = ((n * s.in_channels + c) * s.height + h) * s.width + v;
        const Acc g = Acc(bpc_load(dy, line * s.out_width + ow));
        mine = bpc_fma(g, Acc(bpc_load(x, at)), mine);
      }
    }
  }
#pragma unroll
  for (int step = bpc_lanes / 2; step > 0; step /= 2) {
    mine += __shfl_xor_sync(bpc_full_mask, mine, step);
  }
  return mine;
}
