// bpc_reduce.h: reductions whose tree belongs to the node, not to the machine.
//
// A row reduction over n values: slices of 4096 values; within a slice value j goes to lane
// j % 16, each lane starts from the neutral element and takes its values in ascending order; the
// lanes are folded by halves (l += l + 8, then 4, 2, 1); the slices' results are combined in
// order. The sum of an empty row is 0, its maximum -infinity; NaN propagates.
//
//   const float total = bpc_row_sum<float>(n, [&](long j) { return bpc_load(x, base + j); });
#pragma once
#include "bpc_types.h"

constexpr long bpc_lanes = 16;
constexpr long bpc_row_slice = 4096;

template <class T> constexpr T bpc_infinity = T(__builtin_inf());

// How two partial results, single values or vectors of them, become one.
struct bpc_sum_rule {
  template <class T> static constexpr T neutral() { return T(0); }
  template <class V> __attribute__((always_inline)) static V combine(V a, V b) { return a + b; }
};
struct bpc_max_rule {
  template <class T> static constexpr T neutral() { return -bpc_infinity<T>; }
  template <class V> __attribute__((always_inline)) static V combine(V a, V b) {
    return ((a >= b) | (a != a)) ? a : b;
  }
};

// 16 lanes folded by halves.
template <class T, class Rule> BPC_INLINE T bpc_fold_lanes(const T* lane) {
  T half[bpc_lanes / 2];
  for (long l = 0; l < 8; ++l) half[l] = Rule::combine(lane[l], lane[l + 8]);
  for (long step = 4; step > 0; step /= 2) {
    for (long l = 0; l < step; ++l) half[l] = Rule::combine(half[l], half[l + step]);
  }
  return half[0];
}

// The 16 lanes of one slice. `add` takes value j; `add_block` takes count values that start at a
// multiple of 16; `fold` gives the slice's result.
template <class T, class Rule> struct bpc_lane_state {
  alignas(64) T lane[bpc_lanes];

  bpc_lane_state() { clear(); }
  void clear() {
    for (long l = 0; l < bpc_lanes; ++l) lane[l] = Rule::template neutral<T>();
  }
  void add(long j, T value) { lane[j % bpc_lanes] = Rule::combine(lane[j % bpc_lanes], value); }
  void add_block(const T* values, long count) {
    constexpr long width = bpc_width<T>, parts = bpc_lanes / width;
    bpc_vec<T> part[parts];
#pragma GCC unroll 8
    for (long v = 0; v < parts; ++v) part[v] = bpc_vec_load(lane + v * width);
    long j = 0;
    for (; j + bpc_lanes <= count; j += bpc_lanes) {
#pragma GCC unroll 8
      for (long v = 0; v < parts; ++v) {
        part[v] = Rule::combine(part[v], bpc_vec_load(values + j + v * width));
      }
    }
#pragma GCC unroll 8
    for (long v = 0; v < parts; ++v) bpc_vec_store(lane + v * width, part[v]);
    for (; j < count; ++j) add(j, values[j]);
  }
  T fold() const { return bpc_fold_lanes<T, Rule>(lane); }
};
template <class T> using LaneSum = bpc_lane_state<T, bpc_sum_rule>;
template <class T> using LaneMax = bpc_lane_state<T, bpc_max_rule>;

// f(j) is evaluated once for every j in [0, n), in a vectorised loop over a piece that stays in
// the nearest cache, then the lanes take the piece.
template <class T, class Rule, class F> BPC_INLINE T bpc_row_reduce(long n, F&& f) {
  constexpr long piece = 256;
  alignas(64) T values[piece];
  T total = Rule::template neutral<T>();
  for (long slice = 0; slice < n; slice += bpc_row_slice) {
    const long end = slice + bpc_row_slice < n ? slice + bpc_row_slice : n;
    bpc_lane_state<T, Rule> lanes;
    for (long start = slice; start < end; start += piece) {
      const long count = end - start < piece ? end - start : piece;
#pragma omp simd
      for (long j = 0; j < count; ++j) values[j] = T(f(start + j));
      lanes.add_block(values, count);
    }
    total = slice == 0 ? lanes.fold() : Rule::combine(total, lanes.fold());
  }
  return total;
}
template <class T, class F> BPC_INLINE T bpc_row_sum(long n, F&& f) {
  return bpc_row_reduce<T, bpc_sum_rule>(n, f);
}
template <class T, class F> BPC_INLINE T bpc_row_max(long n, F&& f) {
  return bpc_row_reduce<T, bpc_max_rule>(n, f);
}

// ---- columns and partial results --------------------------------------------------------------

// A column reduction adds its rows in order within slices of bpc_column_slice rows, and the
// slices' sums in order. bpc_serial_sum is the same tree for one column.
constexpr long bpc_column_slice = 256;

template <class Acc, class T> BPC_INLINE Acc bpc_serial_sum(const T* values, long n) {
  Acc total = Acc(0);
  for (long start = 0; start < n; start += bpc_column_slice) {
    const long end = start + bpc_column_slice < n ? start + bpc_column_slice : n;
    Acc part = Acc(0);
    for (long j = start; j < end; ++j) part += Acc(bpc_load(values, j));
    total = start == 0 ? part : total + part;
  }
  return total;
}
