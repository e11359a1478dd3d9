// bpc_gemm.h: matrix products with an epilogue.
//
// C(i, j) is one chain of fused multiply-adds over p = 0, 1, ... k - 1, started at +0, of
// A(i, p) = a[i a_row + p a_col] and B(p, j) = b[p b_row + j b_col]. The bits depend on nothing
// else: not on tiles, slices, threads or the instruction set.
//
// `store(i, j, count, acc)` receives each finished piece of a row: C(i, j ... j + count - 1) in
// `acc` (64-byte aligned, count <= bpc_panel<Acc>), once per element, in a thin loop into which
// the epilogue is inlined:
//
//   bpc_gemm<float>(x, 784, 1, w, 256, 1, m0, m1, n0, n1, 784,
//                   [&](long i, long j, long count, const float* acc) {
//   #pragma omp simd
//     for (long q = 0; q < count; ++q) bpc_store(y, i * 256 + j + q, acc[q] + bias[j + q]);
//   });
//
// Inside, a panel of B (bpc_depth rows x bpc_panel columns) is packed, a register tile of
// bpc_tile_rows rows runs over it, and blocks of up to bpc_block_rows rows keep their partial sums
// on the stack between the panels of a long k. Stack: at most 60 KiB.
#pragma once
#include "bpc_types.h"

#if BPC_VECTOR_BYTES == 64
constexpr long bpc_tile_rows = 8;  // 8 rows x 2 vectors: 16 of 32 registers, no spills
#else
constexpr long bpc_tile_rows = 6;  // 6 rows x 2 vectors: 12 of 16 registers
#endif
constexpr long bpc_tile_vectors = 2;
constexpr long bpc_block_rows = bpc_tile_rows * 16;
template <class Acc> constexpr long bpc_depth = 1024 / long(sizeof(Acc));
template <class Acc> constexpr long bpc_panel = bpc_tile_vectors * bpc_width<Acc>;

// ---- register tile ---------------------------------------------------------------------------

// c[r][...] (rows of bpc_panel) += sum over p of a[r a_row + p a_col] * b[p][...], or starts from
// zero if `first`. `b` has bpc_panel columns, of which the first Vectors vectors are used.
template <class Acc, long Vectors>
BPC_NOINLINE void bpc_tile_product(const Acc* a, long a_row, long a_col, const Acc* b, long k,
                                   bool first, Acc* c) {
  constexpr long rows = bpc_tile_rows, width = bpc_width<Acc>, panel = bpc_panel<Acc>;
  bpc_vec<Acc> sum[rows][Vectors] = {};
  if (!first) {
#pragma GCC unroll 8
    for (long r = 0; r < rows; ++r) {
#pragma GCC unroll 8
      for (long v = 0; v < Vectors; ++v) sum[r][v] = bpc_vec_load(c + r * panel + v * width);
    }
  }
  for (long p = 0; p < k; ++p, a += a_col, b += panel) {
    __builtin_prefetch(a + rows * a_row);  // the next tile: its lines are far apart if a_row == 1
    bpc_vec<Acc> right[Vectors];
#pragma GCC unroll 8
    for (long v = 0; v < Vectors; ++v) right[v] = bpc_vec_load(b + v * width);
#pragma GCC unroll 8
    for (long r = 0; r < rows; ++r) {
      const bpc_vec<Acc> left = bpc_broadcast(a[r * a_row]);
#pragma GCC unroll 8
      for (long v = 0; v < Vectors; ++v) sum[r][v] = bpc_vec_fma(left, right[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (long r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (long v = 0; v < Vectors; ++v) bpc_vec_store(c + r * panel + v * width, sum[r][v]);
  }
}

// ---- packing ---------------------------------------------------------------------------------

// Transpose the square of `width` vectors from[r stride ...] into to[... to_stride]: log2(width)
// rounds, each interleaving vector r with vector r + width / 2.
template <class Acc, class T>
BPC_INLINE void bpc_transpose_square(const T* from, long stride, Acc* to, long to_stride) {
  constexpr long width = bpc_width<Acc>;
  bpc_vec<Acc> x[width], y[width];
#pragma GCC unroll 16
  for (long r = 0; r < width; ++r) x[r] = bpc_vec_widen<Acc>(from + r * stride);
#pragma GCC unroll 4
  for (long round = 1; round < width; round *= 2) {
#pragma GCC unroll 16
    for (long r = 0; r < width / 2; ++r) {
      y[2 * r] = bpc_interleave_low(x[r], x[r + width / 2]);
      y[2 * r + 1] = bpc_interleave_high(x[r], x[r + width / 2]);
    }
#pragma GCC unroll 16
    for (long r = 0; r < width; ++r) x[r] = y[r];
  }
#pragma GCC unroll 16
  for (long r = 0; r < width; ++r) bpc_vec_store(to + r * to_stride, x[r]);
}

// to[p][j] = B(p, j) for k rows and `columns` columns, the rest of each row zero.
template <class Acc, class T>
BPC_NOINLINE void bpc_pack_panel(const T* b, long b_row, long b_col, long k, long columns,
                                 Acc* to) {
  constexpr long width = bpc_width<Acc>, panel = bpc_panel<Acc>;
  long done = 0;  // columns packed for rows [0, whole)
  const long whole = b_row == 1 ? k - k % width : 0;
  if (b_row == 1) {
    for (; done + width <= columns; done += width) {
      for (long p = 0; p < whole; p += width) {
        bpc_transpose_square(b + p + done * b_col, b_col, to + p * panel + done, panel);
      }
    }
  } else if (b_col == 1 && columns == panel) {
    for (long p = 0; p < k; ++p) {
#pragma GCC unroll 2
      for (long v = 0; v < bpc_tile_vectors; ++v) {
        bpc_vec_store(to + p * panel + v * width, bpc_vec_widen<Acc>(b + p * b_row + v * width));
      }
    }
    return;
  }
  for (long p = 0; p < k; ++p) {
    for (long j = p < whole ? done : 0; j < columns; ++j) {
      to[p * panel + j] = Acc(bpc_load(b, p * b_row + j * b_col));
    }
    for (long j = columns; j < panel; ++j) to[p * panel + j] = Acc(0);
  }
}

// A tile of A as accumulation type: where it lies and its strides.
template <class Acc> struct bpc_left_tile {
  const Acc* a;
  long row, col;
};

// to[p] = line[p stride] for p < k.
template <class Acc, class T>
BPC_INLINE void bpc_copy_line(const T* line, long stride, long k, Acc* to) {
  long p = 0;
  if (stride == 1) {
    for (; p + bpc_width<Acc> <= k; p += bpc_width<Acc>) {
      bpc_vec_store(to + p, bpc_vec_widen<Acc>(line + p));
    }
  }
  for (; p < k; ++p) to[p] = Acc(bpc_load(line, p * stride));
}

// Copy a tile of `rows` x k, rows beyond filled with zero: to[p][r] if it is whole and A's columns
// are contiguous (a_row == 1), else to[r][p].
template <class Acc, class T>
BPC_NOINLINE bpc_left_tile<Acc> bpc_copy_left(const T* a, long a_row, long a_col, long rows, long k,
                                              Acc* to) {
  constexpr long most = bpc_tile_rows, depth = bpc_depth<Acc>;
  if (a_row == 1 && rows == most) {
    for (long p = 0; p < k; ++p) {
#pragma omp simd
      for (long r = 0; r < most; ++r) to[p * most + r] = Acc(bpc_load(a, p * a_col + r));
    }
    return {to, 1, most};
  }
  for (long r = 0; r < rows; ++r) bpc_copy_line(a + r * a_row, a_col, k, to + r * depth);
  for (long r = rows; r < most; ++r) {
    for (long p = 0; p < k; ++p) to[r * depth + p] = Acc(0);
  }
  return {to, depth, 1};
}

// A whole tile already in the accumulation type is read in place.
template <class Acc>
BPC_INLINE bpc_left_tile<Acc> bpc_place_left(const Acc* a, long a_row, long a_col, long rows,
                                             long k, Acc* to) {
  if (rows == bpc_tile_rows) return {a, a_row, a_col};
  return bpc_copy_left(a, a_row, a_col, rows, k, to);
}
template <class Acc, class T>
BPC_INLINE bpc_left_tile<Acc> bpc_place_left(const T* a, long a_row, long a_col, long rows, long k,
                                             Acc* to) {
  return bpc_copy_left(a, a_row, a_col, rows, k, to);
}

// ---- block and outer loop --------------------------------------------------------------------

// c[rows][bpc_panel] = A B for rows <= bpc_block_rows and columns <= bpc_panel, the whole of k.
// Rows up to the next whole tile are written too.
template <class Acc, class TA, class TB>
BPC_NOINLINE void bpc_gemm_block(const TA* a, long a_row, long a_col, const TB* b, long b_row,
                                 long b_col, long rows, long columns, long k, Acc* c) {
  constexpr long panel = bpc_panel<Acc>, depth = bpc_depth<Acc>;
  alignas(64) Acc right[depth * panel];
  alignas(64) Acc left[bpc_tile_rows * depth];
  for (long p = 0; p == 0 || p < k; p += depth) {
    const long part = k - p < depth ? k - p : depth;
    bpc_pack_panel(b + p * b_row, b_row, b_col, part, columns, right);
    for (long i = 0; i < rows; i += bpc_tile_rows) {
      const long count = rows - i < bpc_tile_rows ? rows - i : bpc_tile_rows;
      const bpc_left_tile<Acc> t =
          bpc_place_left(a + i * a_row + p * a_col, a_row, a_col, count, part, left);
      if (columns <= bpc_width<Acc>) {
        bpc_tile_product<Acc, 1>(t.a, t.row, t.col, right, part, p == 0, c + i * panel);
      } else {
        bpc_tile_product<Acc, 2>(t.a, t.row, t.col, right, part, p == 0, c + i * panel);
      }
    }
  }
}

template <class Acc, class TA, class TB, class Store>
BPC_INLINE void bpc_gemm(const TA* a, long a_row, long a_col, const TB* b, long b_row, long b_col,
                         long m0, long m1, long n0, long n1, long k, Store&& store) {
  alignas(64) Acc c[bpc_block_rows * bpc_panel<Acc>];
  constexpr long panel = bpc_panel<Acc>;
  for (long j = n0; j < n1; j += panel) {
    const long columns = n1 - j < panel ? n1 - j : panel;
    for (long i = m0; i < m1; i += bpc_block_rows) {
      const long rows = m1 - i < bpc_block_rows ? m1 - i : bpc_block_rows;
      bpc_gemm_block<Acc>(a + i * a_row, a_row, a_col, b + j * b_col, b_row, b_col, rows, columns,
                          k, c);
      for (long r = 0; r < rows; ++r) store(i + r, j, columns, c + r * panel);
    }
  }
}

// ---- slices ----------------------------------------------------------------------------------

// Part `slice` of an m x n result cut into slices_m x slices_n pieces (slice = row part *
// slices_n + column part). Bounds are multiples of 8 rows and 32 columns, whatever the machine;
// parts differ by at most one such unit, and some are empty if there are more parts than units.
struct bpc_tile {
  long m0, m1, n0, n1;
};
constexpr long bpc_cut(long extent, long unit, long parts, long part) {
  const long bound = (extent + unit - 1) / unit * part / parts * unit;
  return bound < extent ? bound : extent;
}
constexpr bpc_tile bpc_gemm_tile(long m, long n, long slices_m, long slices_n, long slice) {
  const long row = slice / slices_n, column = slice % slices_n;
  return {bpc_cut(m, 8, slices_m, row), bpc_cut(m, 8, slices_m, row + 1),
          bpc_cut(n, 32, slices_n, column), bpc_cut(n, 32, slices_n, column + 1)};
}
