// bpc_conv.h: direct 2-d convolution in three directions, NCHW, weights [out, in, kh, kw].
//
// y[n, o, oh, ow] = sum of w[o, c, kh, kw] x[n, c, oh sh + kh - ph, ow sw + kw - pw]
//
// Each element of y (of dx) is one chain of fused multiply-adds started at +0, over c (over o),
// kh, kw in ascending order; taps that fall on padding, or between strides, are skipped.
// Each element of dw is a tree of its own: 16 lanes started at +0; for n, oh, ow in ascending
// order, taps on padding skipped, lane[ow % 16] = fma(dy, x, lane[ow % 16]); the lanes are then
// folded by halves (l += l + 8, 4, 2, 1). The bits depend on nothing else.
//
// Work is cut into units, numbered as bpc_conv_units counts them; a slice runs units [u0, u1).
// `store(n, channel, row, col, count, acc)` receives pieces of rows of y or dx,
// `store(o, c, kh, kw, value)` single elements of dw.
#pragma once
#include "bpc_reduce.h"

struct bpc_conv {
  long in_channels, height, width;
  long out_channels, out_height, out_width;
  long kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
};

// Channels computed together, as many as the registers hold.
constexpr long bpc_conv_tile = BPC_VECTOR_BYTES == 64 ? 8 : 4;
constexpr long bpc_conv_tiles(long channels) {
  return (channels + bpc_conv_tile - 1) / bpc_conv_tile;
}

constexpr long bpc_conv_forward_units(const bpc_conv& s, long images) {
  return images * bpc_conv_tiles(s.out_channels);
}
constexpr long bpc_conv_input_units(const bpc_conv& s, long images) {
  return images * bpc_conv_tiles(s.in_channels);
}
constexpr long bpc_conv_weight_units(const bpc_conv& s) {
  return bpc_conv_tiles(s.out_channels) * s.in_channels;
}

// ---- one axis --------------------------------------------------------------------------------

// Where position `at` of the result reads position `at * step + shift`, divided by `divisor`, of
// a source of `size` positions. Forward: step = stride, divisor = 1; input gradient: step = 1,
// divisor = stride. Never are both above 1.
struct bpc_axis {
  long size, step, divisor;
  // The source position, or -1 if there is none.
  long source(long at, long shift) const {
    const long scaled = at * step + shift, position = scaled / divisor;
    return scaled >= 0 && scaled % divisor == 0 && position < size ? position : -1;
  }
  bool shifts() const { return step == 1 && divisor == 1; }
};

// Lanes of one piece of a row: two vectors of results, or 16 lanes of a weight gradient.
template <class Acc> constexpr long bpc_piece = 2 * bpc_width<Acc>;
template <class Acc> struct bpc_mask;
template <> struct bpc_mask<float> {
  typedef int32_t lane;
  typedef int32_t vector __attribute__((vector_size(BPC_VECTOR_BYTES)));
};
template <> struct bpc_mask<double> {
  typedef int64_t lane;
  typedef int64_t vector __attribute__((vector_size(BPC_VECTOR_BYTES)));
};
alignas(64) constexpr int32_t bpc_count_f32[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                   8, 9, 10, 11, 12, 13, 14, 15};
alignas(64) constexpr int64_t bpc_count_f64[8] = {0, 1, 2, 3, 4, 5, 6, 7};
BPC_INLINE const int32_t* bpc_lane_numbers(const float*) { return bpc_count_f32; }
BPC_INLINE const int64_t* bpc_lane_numbers(const double*) { return bpc_count_f64; }

// Set in the lanes of [low, high), the vector's first lane being `first`.
template <class Acc>
BPC_INLINE typename bpc_mask<Acc>::vector bpc_mask_range(long first, long low, long high) {
  typedef typename bpc_mask<Acc>::lane lane;
  typename bpc_mask<Acc>::vector number;
  __builtin_memcpy(&number, bpc_lane_numbers((const Acc*)nullptr), sizeof number);
  return (number >= lane(low - first)) & (number < lane(high - first));
}

// The source lanes of one tap: `Lanes` values, of which those with a set mask (all if not
// `masked`) take part. They are read where they lie if the reading stays inside the tensor, whose
// other elements then fill the lanes that do not take part.
template <class Acc, long Lanes> struct bpc_tap {
  static constexpr long width = bpc_width<Acc>;
  alignas(64) Acc buffer[Lanes];
  typename bpc_mask<Acc>::vector mask[Lanes / width];
  const Acc* values;
  bool masked;

  void set_mask(long low, long high) {
#pragma GCC unroll 8
    for (long v = 0; v < Lanes / width; ++v) mask[v] = bpc_mask_range<Acc>(v * width, low, high);
  }
  // Result positions [at, at + count) of a row that starts at element `row` of a tensor of
  // `total` elements. False if no lane takes part.
  template <class T>
  bool read(const T* tensor, long total, long row, bpc_axis axis, long at, long shift, long count) {
    return axis.shifts() ? read_run(tensor, total, row, axis.size, at + shift, count)
                         : gather(tensor + row, axis, at, shift, count);
  }
  template <class T>
  bool read_run(const T* tensor, long total, long row, long size, long from, long count) {
    const long low = from < 0 ? -from : 0, high = size - from < count ? size - from : count;
    if (low >= high) return false;
    masked = low > 0 || high < count;
    if (masked) set_mask(low, high);
    if (row + from >= 0 && row + from + Lanes <= total) {
      values = widen(tensor + row + from);
      return true;
    }
    for (long l = 0; l < Lanes; ++l) buffer[l] = Acc(0);
#pragma omp simd
    for (long l = low; l < high; ++l) buffer[l] = Acc(bpc_load(tensor, row + from + l));
    values = buffer;
    return true;
  }
  const Acc* widen(const Acc* from) { return from; }
  template <class T> const Acc* widen(const T* from) {
#pragma GCC unroll 8
    for (long l = 0; l < Lanes; l += width) {
      bpc_vec_store(buffer + l, bpc_vec_widen<Acc>(from + l));
    }
    return buffer;
  }
  template <class T> bool gather(const T* row, bpc_axis axis, long at, long shift, long count) {
    const long scaled = at * axis.step + shift;
    const long low = scaled < 0 ? (-scaled + axis.step - 1) / axis.step
                                : (axis.divisor - scaled % axis.divisor) % axis.divisor;
    long position = (scaled + low * axis.step) / axis.divisor;
    if (low >= count || position >= axis.size) return false;
    for (long l = 0; l < Lanes; ++l) buffer[l] = Acc(0);
    if (axis.divisor == 1) {
      const long fit = low + (axis.size - position + axis.step - 1) / axis.step;
      const long high = fit < count ? fit : count;
      set_mask(low, high);
#pragma omp simd
      for (long l = low; l < high; ++l) {
        buffer[l] = Acc(bpc_load(row, position + (l - low) * axis.step));
      }
    } else {
      alignas(64) typename bpc_mask<Acc>::lane flags[Lanes] = {};
      for (long l = low; l < count && position < axis.size; l += axis.divisor, ++position) {
        flags[l] = -1;
        buffer[l] = Acc(bpc_load(row, position));
      }
      __builtin_memcpy(mask, flags, sizeof mask);
    }
    values = buffer;
    masked = true;
    return true;
  }
};

// ---- forward and input gradient --------------------------------------------------------------

// Both directions as one gathering: result channel r takes, over source channels s, kh and kw,
// weight[r result_stride + s source_stride + kh kernel_w + kw] times the source shifted by
// sign * (k - pad).
struct bpc_gathering {
  long result_channels, result_height, result_width, source_channels;
  bpc_axis rows, cols;
  long kernel_h, kernel_w, pad_h, pad_w, sign;
  long result_stride, source_stride;
};

// sums[channel][lane] for one piece of a row in up to bpc_conv_tile channels from `channel` on.
template <class Acc, long Vectors, class TX, class TW>
BPC_NOINLINE void bpc_conv_piece(const bpc_gathering& g, const TX* x, long total, long image,
                                 const TW* w, long channel, long row, long col, long count,
                                 Acc* sums) {
  constexpr long tile = bpc_conv_tile, width = bpc_width<Acc>, lanes = Vectors * width;
  bpc_vec<Acc> sum[tile][Vectors] = {};
  bpc_tap<Acc, lanes> tap;
  long weight_of[tile];  // channels beyond the last repeat it; their results are not used
  for (long t = 0; t < tile; ++t) {
    const long r = channel + t < g.result_channels ? channel + t : g.result_channels - 1;
    weight_of[t] = r * g.result_stride;
  }
  for (long s = 0; s < g.source_channels; ++s) {
    for (long kh = 0; kh < g.kernel_h; ++kh) {
      const long source_row = g.rows.source(row, g.sign * (kh - g.pad_h));
      if (source_row < 0) continue;
      const long start = ((image * g.source_channels + s) * g.rows.size + source_row) * g.cols.size;
      for (long kw = 0; kw < g.kernel_w; ++kw) {
        if (!tap.read(x, total, start, g.cols, col, g.sign * (kw - g.pad_w), count)) continue;
        const TW* weight = w + s * g.source_stride + kh * g.kernel_w + kw;
        bpc_vec<Acc> value[Vectors];
#pragma GCC unroll 2
        for (long v = 0; v < Vectors; ++v) value[v] = bpc_vec_load(tap.values + v * width);
        if (!tap.masked) {
#pragma GCC unroll 8
          for (long t = 0; t < tile; ++t) {
            const bpc_vec<Acc> factor = bpc_broadcast(Acc(bpc_load(weight, weight_of[t])));
#pragma GCC unroll 2
            for (long v = 0; v < Vectors; ++v) sum[t][v] = bpc_vec_fma(factor, value[v], sum[t][v]);
          }
          continue;
        }
#pragma GCC unroll 8
        for (long t = 0; t < tile; ++t) {
          const bpc_vec<Acc> factor = bpc_broadcast(Acc(bpc_load(weight, weight_of[t])));
#pragma GCC unroll 2
          for (long v = 0; v < Vectors; ++v) {
            sum[t][v] = tap.mask[v] ? bpc_vec_fma(factor, value[v], sum[t][v]) : sum[t][v];
          }
        }
      }
    }
  }
#pragma GCC unroll 8
  for (long t = 0; t < tile; ++t) {
#pragma GCC unroll 2
    for (long v = 0; v < Vectors; ++v) {
      bpc_vec_store(sums + t * bpc_piece<Acc> + v * width, sum[t][v]);
    }
  }
}

template <class Acc, class TX, class TW, class Store>
BPC_INLINE void bpc_conv_gather(const bpc_gathering& g, const TX* x, const TW* w, long images,
                                long u0, long u1, Store&& store) {
  alignas(64) Acc sums[bpc_conv_tile * bpc_piece<Acc>];
  const long tiles = bpc_conv_tiles(g.result_channels);
  const long total = images * g.source_channels * g.rows.size * g.cols.size;
  for (long u = u0; u < u1; ++u) {
    const long image = u / tiles, channel = u % tiles * bpc_conv_tile;
    const long left = g.result_channels - channel;
    for (long row = 0; row < g.result_height; ++row) {
      for (long col = 0; col < g.result_width; col += bpc_piece<Acc>) {
        const long rest = g.result_width - col;
        const long count = rest < bpc_piece<Acc> ? rest : bpc_piece<Acc>;
        if (count <= bpc_width<Acc>) {
          bpc_conv_piece<Acc, 1>(g, x, total, image, w, channel, row, col, count, sums);
        } else {
          bpc_conv_piece<Acc, 2>(g, x, total, image, w, channel, row, col, count, sums);
        }
        for (long t = 0; t < bpc_conv_tile && t < left; ++t) {
          store(image, channel + t, row, col, count, sums + t * bpc_piece<Acc>);
        }
      }
    }
  }
}

// y from x [images, in, height, width] and w.
template <class Acc, class TX, class TW, class Store>
BPC_INLINE void bpc_conv_forward(const bpc_conv& s, const TX* x, const TW* w, long images, long u0,
                                 long u1, Store&& store) {
  const long taps = s.kernel_h * s.kernel_w;
  const bpc_gathering g = {s.out_channels, s.out_height, s.out_width, s.in_channels,
                           {s.height, s.stride_h, 1}, {s.width, s.stride_w, 1},
                           s.kernel_h, s.kernel_w, s.pad_h, s.pad_w, 1,
                           s.in_channels * taps, taps};
  bpc_conv_gather<Acc>(g, x, w, images, u0, u1, store);
}

// dx from dy [images, out, out_height, out_width] and w.
template <class Acc, class TY, class TW, class Store>
BPC_INLINE void bpc_conv_input_gradient(const bpc_conv& s, const TY* dy, const TW* w, long images,
                                        long u0, long u1, Store&& store) {
  const long taps = s.kernel_h * s.kernel_w;
  const bpc_gathering g = {s.in_channels, s.height, s.width, s.out_channels,
                           {s.out_height, 1, s.stride_h}, {s.out_width, 1, s.stride_w},
                           s.kernel_h, s.kernel_w, s.pad_h, s.pad_w, -1,
                           taps, s.in_channels * taps};
  bpc_conv_gather<Acc>(g, dy, w, images, u0, u1, store);
}

// ---- weight gradient -------------------------------------------------------------------------

// sums[out channel][lane] of one tap (c, kh, kw) for bpc_conv_tile out channels.
template <class Acc, class TX, class TY>
BPC_NOINLINE void bpc_conv_weight_lanes(const bpc_conv& s, const TX* x, const TY* dy, long images,
                                        long channel, long c, long kh, long kw, Acc* sums) {
  constexpr long tile = bpc_conv_tile, width = bpc_width<Acc>, vectors = bpc_lanes / width;
  const bpc_axis rows = {s.height, s.stride_h, 1}, cols = {s.width, s.stride_w, 1};
  const long y_plane = s.out_height * s.out_width, y_total = images * s.out_channels * y_plane;
  const long x_total = images * s.in_channels * s.height * s.width;
  bpc_vec<Acc> sum[tile][vectors] = {};
  bpc_tap<Acc, bpc_lanes> source;
  alignas(64) Acc copy[tile * bpc_lanes] = {};
  long plane_of[tile], copy_of[tile];  // channels beyond the last repeat it
  for (long t = 0; t < tile; ++t) {
    plane_of[t] = (channel + t < s.out_channels ? channel + t : s.out_channels - 1) * y_plane;
    copy_of[t] = t * bpc_lanes;
  }
  for (long n = 0; n < images; ++n) {
    for (long oh = 0; oh < s.out_height; ++oh) {
      const long row = rows.source(oh, kh - s.pad_h);
      if (row < 0) continue;
      const long x_start = ((n * s.in_channels + c) * s.height + row) * s.width;
      for (long ow = 0; ow < s.out_width; ow += bpc_lanes) {
        const long rest = s.out_width - ow, count = rest < bpc_lanes ? rest : bpc_lanes;
        if (!source.read(x, x_total, x_start, cols, ow, kw - s.pad_w, count)) continue;
        if (!source.masked) source.set_mask(0, count);
        const long y_start = n * s.out_channels * y_plane + oh * s.out_width + ow;
        const Acc* gradient = copy;
        const long* offset = copy_of;
        if constexpr (bpc_same<TY, Acc>) {
          if (y_start + plane_of[tile - 1] + bpc_lanes <= y_total) {
            gradient = dy + y_start;
            offset = plane_of;
          }
        }
        for (long t = 0; t < tile && offset == copy_of; ++t) {
#pragma omp simd
          for (long l = 0; l < count; ++l) {
            copy[t * bpc_lanes + l] = Acc(bpc_load(dy, y_start + plane_of[t] + l));
          }
        }
#pragma GCC unroll 8
        for (long t = 0; t < tile; ++t) {
#pragma GCC unroll 8
          for (long v = 0; v < vectors; ++v) {
            const bpc_vec<Acc> next =
                bpc_vec_fma(bpc_vec_load(gradient + offset[t] + v * width),
                            bpc_vec_load(source.values + v * width), sum[t][v]);
            sum[t][v] = source.mask[v] ? next : sum[t][v];
          }
        }
      }
    }
  }
#pragma GCC unroll 8
  for (long t = 0; t < tile; ++t) {
#pragma GCC unroll 8
    for (long v = 0; v < vectors; ++v) bpc_vec_store(sums + t * bpc_lanes + v * width, sum[t][v]);
  }
}

// dw from x and dy; unit u is channel tile u / in_channels and input channel u % in_channels.
template <class Acc, class TX, class TY, class Store>
BPC_INLINE void bpc_conv_weight_gradient(const bpc_conv& s, const TX* x, const TY* dy, long images,
                                         long u0, long u1, Store&& store) {
  alignas(64) Acc sums[bpc_conv_tile * bpc_lanes];
  for (long u = u0; u < u1; ++u) {
    const long channel = u / s.in_channels * bpc_conv_tile, c = u % s.in_channels;
    const long left = s.out_channels - channel;
    for (long tap = 0; tap < s.kernel_h * s.kernel_w; ++tap) {
      const long kh = tap / s.kernel_w, kw = tap % s.kernel_w;
      bpc_conv_weight_lanes(s, x, dy, images, channel, c, kh, kw, sums);
      for (long t = 0; t < bpc_conv_tile && t < left; ++t) {
        store(channel + t, c, kh, kw, bpc_fold_lanes<Acc, bpc_sum_rule>(sums + t * bpc_lanes));
      }
    }
  }
}
