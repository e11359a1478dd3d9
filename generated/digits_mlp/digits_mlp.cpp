// digits-mlp: kernels of the network, compiled once and run from a table of launches.
//
// Every function computes one slice of one kernel. Tensors lie in one arena; `offsets` says where,
// so that a plan for another memory budget changes neither this text nor the compiled code.
#include "bpc_conv.h"
#include "bpc_gemm.h"
#include "bpc_reduce.h"
#include "bpc_team.h"

// linear1_relu1
//   acc[r, c] = sum over k < 64 of x[r, k] * linear1_weight[k, c]
//   linear1 = acc + linear1_bias
//   relu1 = 0 if linear1 <= 0 else linear1
//   reads  x f32[batch, 64], linear1.weight f32[64, 256], linear1.bias f32[256]
//   writes relu1 f32[batch, 256]
//   nodes  linear1, relu1
//   space [batch, 256]: r a row of the result, r < batch; c a column of it, c < 256
//   at 64 rows reads 82,944 B, writes 65,536 B, 2,129,920 FLOPs
//   from specs/digits_mlp.yaml:16, :17
static void linear1_relu1(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const float* x_in = (const float*)(arena + offsets[0]);
  const float* linear1_weight_in = (const float*)(arena + offsets[1]);
  const float* linear1_bias_in = (const float*)(arena + offsets[2]);
  float* relu1_out = (float*)(arena + offsets[3]);

  const bpc_tile tile = bpc_gemm_tile(rows, 256, 1, 8, slice);
  bpc_gemm<float>(
      x_in, 64, 1, linear1_weight_in, 256, 1,
      tile.m0, tile.m1, tile.n0, tile.n1, 64,
      [&](long r, long c0, long count, const float* finished) {
#pragma omp simd
        for (long q = 0; q < count; ++q) {
          const long c = c0 + q;
          const float acc = finished[q];
          const float linear1_bias = bpc_load(linear1_bias_in, c);
          const float linear1 = acc + linear1_bias;  // linear1, specs/digits_mlp.yaml:16
          const float relu1 = (linear1 <= 0.0f ? 0.0f : linear1);  // relu1, specs/digits_mlp.yaml:17
          bpc_store(relu1_out, r * 256 + c, relu1);
        }
      });
}

// linear2_relu2_dropout1
//   acc[r, c] = sum over k < 256 of relu1[r, k] * linear2_weight[k, c]
//   linear2 = acc + linear2_bias
//   relu2_mask = linear2 <= 0
//   relu2 = 0 if linear2 <= 0 else linear2
//   dropout1 = 1.25 * relu2 if uniform(control_seed, control_window, 1643519052, dropout1_element) >= 0.2
//     else 0
//   reads  relu1 f32[batch, 256], linear2.weight f32[256, 128], linear2.bias f32[128],
//          control.seed i64[], control.window i64[], control.first_row i64[]
//   writes relu2.mask bit[batch, 128], dropout1 f32[batch, 128]
//   nodes  linear2, relu2.mask, relu2, dropout1
//   space [batch, 128]: r a row of the result, r < batch; c a column of it, c < 128
//   at 64 rows reads 197,144 B, writes 33,792 B, 4,571,136 FLOPs
//   from specs/digits_mlp.yaml:18, :19, :20
static void linear2_relu2_dropout1(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const float* relu1_in = (const float*)(arena + offsets[0]);
  const float* linear2_weight_in = (const float*)(arena + offsets[1]);
  const float* linear2_bias_in = (const float*)(arena + offsets[2]);
  const int64_t* control_seed_in = (const int64_t*)(arena + offsets[3]);
  const int64_t* control_window_in = (const int64_t*)(arena + offsets[4]);
  const int64_t* control_first_row_in = (const int64_t*)(arena + offsets[5]);
  uint8_t* relu2_mask_out = (uint8_t*)(arena + offsets[6]);
  float* dropout1_out = (float*)(arena + offsets[7]);

  const int64_t control_seed = bpc_load(control_seed_in, 0);
  const int64_t control_window = bpc_load(control_window_in, 0);
  const int64_t control_first_row = bpc_load(control_first_row_in, 0);
  const bpc_tile tile = bpc_gemm_tile(rows, 128, 2, 4, slice);
  bpc_gemm<float>(
      relu1_in, 256, 1, linear2_weight_in, 128, 1,
      tile.m0, tile.m1, tile.n0, tile.n1, 256,
      [&](long r, long c0, long count, const float* finished) {
        uint8_t relu2_mask_out_flags[bpc_panel<float>];
#pragma omp simd
        for (long q = 0; q < count; ++q) {
          const long c = c0 + q;
          const float acc = finished[q];
          const float linear2_bias = bpc_load(linear2_bias_in, c);
          const float linear2 = acc + linear2_bias;  // linear2, specs/digits_mlp.yaml:18
          const bool relu2_mask = linear2 <= 0.0f;  // relu2, specs/digits_mlp.yaml:19
          const float relu2 = (linear2 <= 0.0f ? 0.0f : linear2);  // relu2, specs/digits_mlp.yaml:19
          const int64_t dropout1_element = r * 128 + c + control_first_row * 128;
          // dropout1, specs/digits_mlp.yaml:20
          const float dropout1 = (bpc_uniform(control_seed, control_window, 1643519052,
              dropout1_element) >= 0.2f ? 1.25f * relu2 : 0.0f);
          bpc_store(dropout1_out, r * 128 + c, dropout1);
          relu2_mask_out_flags[q] = relu2_mask;
        }
        bpc_bits_store(relu2_mask_out, r * 128 + c0, relu2_mask_out_flags, count);
      });
}

// linear3
//   acc[r, c] = sum over k < 128 of dropout1[r, k] * linear3_weight[k, c]
//   linear3 = acc + linear3_bias
//   reads  dropout1 f32[batch, 128], linear3.weight f32[128, 10], linear3.bias f32[10]
//   writes linear3 f32[batch, 10]
//   nodes  linear3
//   space [batch, 10]: r a row of the result, r < batch; c a column of it, c < 10
//   at 64 rows reads 37,928 B, writes 2,560 B, 163,840 FLOPs
//   from specs/digits_mlp.yaml:21
static void linear3(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const float* dropout1_in = (const float*)(arena + offsets[0]);
  const float* linear3_weight_in = (const float*)(arena + offsets[1]);
  const float* linear3_bias_in = (const float*)(arena + offsets[2]);
  float* linear3_out = (float*)(arena + offsets[3]);

  const bpc_tile tile = bpc_gemm_tile(rows, 10, 4, 1, slice);
  bpc_gemm<float>(
      dropout1_in, 128, 1, linear3_weight_in, 10, 1,
      tile.m0, tile.m1, tile.n0, tile.n1, 128,
      [&](long r, long c0, long count, const float* finished) {
#pragma omp simd
        for (long q = 0; q < count; ++q) {
          const long c = c0 + q;
          const float acc = finished[q];
          const float linear3_bias = bpc_load(linear3_bias_in, c);
          const float linear3 = acc + linear3_bias;  // linear3, specs/digits_mlp.yaml:21
          bpc_store(linear3_out, r * 10 + c, linear3);
        }
      });
}

// loss_cross_entropy_with_gradient
//   loss_part2[r] = max over c of linear3
//   loss_exp = exp(linear3 - loss_part2)
//   loss_sum[r] = sum over c of loss_exp
//   loss_part3 = log(loss_sum)
//   loss_column_2 = the element's place along axis 1
//   loss_chosen = linear3 - loss_part2 if loss_column_2 == target else 0
//   loss_picked[r] = sum over c of loss_chosen
//   loss_seed = control_scale / control_divisor, rounded to f32
//   d_linear3 = loss_seed * (exp(linear3 - loss_part2 - loss_part3) - (1 if loss_column_2 == target else 0))
//   reads  linear3 f32[batch, 10], target i64[batch], control.scale f64[], control.divisor f64[]
//   writes loss_part3 = loss#3 f32[batch], loss.picked f32[batch], d_linear3 f32[batch, 10]
//   nodes  loss#2, loss.exp, loss.sum, loss#3, loss.chosen, loss.picked, loss.seed, d_linear3
//   space [batch, 10]: row r < batch, element c < 10 of a row
//   at 64 rows reads 3,088 B, writes 3,072 B, 21,761 FLOPs
//   from specs/digits_mlp.yaml:24
static void loss_cross_entropy_with_gradient(char* arena, const int64_t* offsets, int64_t rows,
    int64_t slice) {
  const float* linear3_in = (const float*)(arena + offsets[0]);
  const int64_t* target_in = (const int64_t*)(arena + offsets[1]);
  const double* control_scale_in = (const double*)(arena + offsets[2]);
  const double* control_divisor_in = (const double*)(arena + offsets[3]);
  float* loss_part3_out = (float*)(arena + offsets[4]);
  float* loss_picked_out = (float*)(arena + offsets[5]);
  float* d_linear3_out = (float*)(arena + offsets[6]);

  const double control_scale = bpc_load(control_scale_in, 0);
  const double control_divisor = bpc_load(control_divisor_in, 0);
  const float loss_seed = float(control_scale / control_divisor);  // loss gradient, specs/digits_mlp.yaml:24
  const long last = rows * (slice + 1) / offsets[7];
  for (long r = rows * slice / offsets[7]; r < last; ++r) {
    const int64_t target = bpc_load(target_in, r);
    // max over the row, specs/digits_mlp.yaml:24
    const float loss_part2 = (bpc_row_max<float>(10, [&](long c) {
      const float linear3 = bpc_load(linear3_in, r * 10 + c);
      return float(linear3);
    }));
    // sum over the row, specs/digits_mlp.yaml:24
    const float loss_sum = (bpc_row_sum<float>(10, [&](long c) {
      const float linear3 = bpc_load(linear3_in, r * 10 + c);
      const float loss_exp = bpc_exp(linear3 - loss_part2);  // loss (cross entropy), specs/digits_mlp.yaml:24
      return float(loss_exp);
    }));
    const float loss_part3 = bpc_log(loss_sum);  // loss (cross entropy), specs/digits_mlp.yaml:24
    // sum over the row, specs/digits_mlp.yaml:24
    const float loss_picked = (bpc_row_sum<float>(10, [&](long c) {
      const float linear3 = bpc_load(linear3_in, r * 10 + c);
      const int64_t loss_column_2 = c;
      // loss (cross entropy), specs/digits_mlp.yaml:24
      const float loss_chosen = (loss_column_2 == target ? linear3 - loss_part2 : 0.0f);
      return float(loss_chosen);
    }));
    bpc_store(loss_part3_out, r, loss_part3);
    bpc_store(loss_picked_out, r, loss_picked);
#pragma omp simd
    for (long c = 0; c < 10; ++c) {
      const float linear3 = bpc_load(linear3_in, r * 10 + c);
      const int64_t loss_column_2 = c;
      // loss (cross entropy) gradient, specs/digits_mlp.yaml:24
      const float d_linear3 = loss_seed
          * (bpc_exp(linear3 - loss_part2 - loss_part3) - (loss_column_2 == target ? 1.0f : 0.0f));
      bpc_store(d_linear3_out, r * 10 + c, d_linear3);
    }
  }
}

// loss_cross_entropy
//   loss_terms = loss_part3 - loss_picked
//   loss_total = sum over all c < batch of loss_terms
//   reads  loss_part3 = loss#3 f32[batch], loss.picked f32[batch]
//   writes loss.total f64[]
//   nodes  loss.terms, loss.total
//   space [batch, 1], taken as one row: element c < batch
//   at 64 rows reads 512 B, writes 8 B, 128 FLOPs
//   from specs/digits_mlp.yaml:24
static void loss_cross_entropy(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const float* loss_part3_in = (const float*)(arena + offsets[0]);
  const float* loss_picked_in = (const float*)(arena + offsets[1]);
  double* loss_total_out = (double*)(arena + offsets[2]);

  const long last = 1 * (slice + 1) / offsets[3];
  for (long r = 1 * slice / offsets[3]; r < last; ++r) {
    // sum over all c, specs/digits_mlp.yaml:24
    const double loss_total = (bpc_row_sum<double>(rows, [&](long c) {
      const float loss_part3 = bpc_load(loss_part3_in, c);
      const float loss_picked = bpc_load(loss_picked_in, c);
      const float loss_terms = loss_part3 - loss_picked;  // loss (cross entropy), specs/digits_mlp.yaml:24
      return double(loss_terms);
    }));
    bpc_store(loss_total_out, 0, loss_total);
  }
}

// loss_cross_entropy_part1
//   loss_part1_extent = batch
//   loss_part1 = loss_part1_extent
//   writes loss_part1 = loss#1 f64[]
//   nodes  loss#1
//   space []
//   at any batch reads 0 B, writes 8 B, 0 FLOPs
//   from specs/digits_mlp.yaml:24
static void loss_cross_entropy_part1(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  double* loss_part1_out = (double*)(arena + offsets[0]);

  const int64_t loss_part1_extent = rows;
  const double loss_part1 = double(loss_part1_extent);  // loss (cross entropy), specs/digits_mlp.yaml:24
  bpc_store(loss_part1_out, 0, loss_part1);
}

// linear3_bias_gradient
//   d_linear3_bias_cols[c] = sum over r of d_linear3[r, c]
//   reads  d_linear3 f32[batch, 10]
//   writes d_linear3.bias.cols f32[10]
//   nodes  d_linear3.bias.cols
//   space [batch, 10]: r summed, r < batch; c a column kept, c < 10
//   at 64 rows reads 2,560 B, writes 40 B, 640 FLOPs
//   from specs/digits_mlp.yaml:21
static void linear3_bias_gradient(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const float* d_linear3_in = (const float*)(arena + offsets[0]);
  float* d_linear3_bias_cols_out = (float*)(arena + offsets[1]);

  constexpr long block = 64, blocks = (10 + block - 1) / block;
  const long last = 1 * blocks * (slice + 1) / offsets[2];
  for (long unit = 1 * blocks * slice / offsets[2]; unit < last; ++unit) {
    const long o = unit / blocks, c0 = unit % blocks * block;
    const long count = 10 - c0 < block ? 10 - c0 : block;
    float total[block], part[block];
    for (long q = 0; q < count; ++q) total[q] = 0;
    for (long start = 0; start < rows; start += bpc_column_slice) {
      const long end = rows - start < bpc_column_slice ? rows : start + bpc_column_slice;
      for (long q = 0; q < count; ++q) part[q] = 0;
      for (long j = start; j < end; ++j) {  // specs/digits_mlp.yaml:21
        const long r = o * (rows) + j;
        (void)r;
#pragma omp simd
        for (long q = 0; q < count; ++q) {
          const long c = c0 + q;
          (void)c;
          const float d_linear3 = bpc_load(d_linear3_in, r * 10 + c);
          part[q] += float(d_linear3);
        }
      }
      for (long q = 0; q < count; ++q) total[q] = start == 0 ? part[q] : total[q] + part[q];
    }
    for (long q = 0; q < count; ++q) bpc_store(d_linear3_bias_cols_out, o * 10 + c0 + q, total[q]);
  }
}

// linear3_weight_gradient
//   acc[r, c] = sum over k < batch of dropout1[k, r] * d_linear3[k, c]
//   d_linear3_weight = acc
//   reads  dropout1 f32[batch, 128], d_linear3 f32[batch, 10]
//   writes d_linear3.weight f32[128, 10]
//   nodes  d_linear3.weight
//   space [128, 10]: r a row of the result, r < 128; c a column of it, c < 10
//   at 64 rows reads 35,328 B, writes 5,120 B, 163,840 FLOPs
//   from specs/digits_mlp.yaml:21
static void linear3_weight_gradient(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const float* dropout1_in = (const float*)(arena + offsets[0]);
  const float* d_linear3_in = (const float*)(arena + offsets[1]);
  float* d_linear3_weight_out = (float*)(arena + offsets[2]);

  const bpc_tile tile = bpc_gemm_tile(128, 10, 8, 1, slice);
  bpc_gemm<float>(
      dropout1_in, 1, 128, d_linear3_in, 10, 1,
      tile.m0, tile.m1, tile.n0, tile.n1, rows,
      [&](long r, long c0, long count, const float* finished) {
#pragma omp simd
        for (long q = 0; q < count; ++q) {
          const long c = c0 + q;
          const float acc = finished[q];
          const float d_linear3_weight = acc;  // linear3 weight gradient, specs/digits_mlp.yaml:21
          bpc_store(d_linear3_weight_out, r * 10 + c, d_linear3_weight);
        }
      });
}

// relu2_dropout1_linear3_input_gradient
//   acc[r, c] = sum over k < 10 of d_linear3[r, k] * linear3_weight[c, k]
//   d_dropout1 = acc
//   d_relu2 = 1.25 * d_dropout1 if uniform(control_seed, control_window, 1643519052, d_relu2_element) >= 0.2
//     else 0
//   d_linear2 = 0 if relu2_mask else d_relu2
//   reads  d_linear3 f32[batch, 10], linear3.weight f32[128, 10], control.seed i64[],
//          control.window i64[], control.first_row i64[], relu2.mask bit[batch, 128]
//   writes d_linear2 f32[batch, 128]
//   nodes  d_dropout1, d_relu2, d_linear2
//   space [batch, 128]: r a row of the result, r < batch; c a column of it, c < 128
//   at 64 rows reads 8,728 B, writes 32,768 B, 524,288 FLOPs
//   from specs/digits_mlp.yaml:21, :20, :19
static void relu2_dropout1_linear3_input_gradient(char* arena, const int64_t* offsets, int64_t rows,
    int64_t slice) {
  const float* d_linear3_in = (const float*)(arena + offsets[0]);
  const float* linear3_weight_in = (const float*)(arena + offsets[1]);
  const int64_t* control_seed_in = (const int64_t*)(arena + offsets[2]);
  const int64_t* control_window_in = (const int64_t*)(arena + offsets[3]);
  const int64_t* control_first_row_in = (const int64_t*)(arena + offsets[4]);
  const uint8_t* relu2_mask_in = (const uint8_t*)(arena + offsets[5]);
  float* d_linear2_out = (float*)(arena + offsets[6]);

  const int64_t control_seed = bpc_load(control_seed_in, 0);
  const int64_t control_window = bpc_load(control_window_in, 0);
  const int64_t control_first_row = bpc_load(control_first_row_in, 0);
  const bpc_tile tile = bpc_gemm_tile(rows, 128, 2, 4, slice);
  bpc_gemm<float>(
      d_linear3_in, 10, 1, linear3_weight_in, 1, 10,
      tile.m0, tile.m1, tile.n0, tile.n1, 10,
      [&](long r, long c0, long count, const float* finished) {
#pragma omp simd
        for (long q = 0; q < count; ++q) {
          const long c = c0 + q;
          const float acc = finished[q];
          const bool relu2_mask = bpc_bit_load(relu2_mask_in, r * 128 + c);
          const float d_dropout1 = acc;  // linear3 input gradient, specs/digits_mlp.yaml:21
          const int64_t d_relu2_element = r * 128 + c + control_first_row * 128;
          // dropout1 gradient, specs/digits_mlp.yaml:20
          const float d_relu2 = (bpc_uniform(control_seed, control_window, 1643519052,
              d_relu2_element) >= 0.2f ? 1.25f * d_dropout1 : 0.0f);
          const float d_linear2 = (relu2_mask ? 0.0f : d_relu2);  // relu2 gradient, specs/digits_mlp.yaml:19
          bpc_store(d_linear2_out, r * 128 + c, d_linear2);
        }
      });
}

// linear2_bias_gradient
//   d_linear2_bias_cols[c] = sum over r of d_linear2[r, c]
//   reads  d_linear2 f32[batch, 128]
//   writes d_linear2.bias.cols f32[128]
//   nodes  d_linear2.bias.cols
//   space [batch, 128]: r summed, r < batch; c a column kept, c < 128
//   at 64 rows reads 32,768 B, writes 512 B, 8,192 FLOPs
//   from specs/digits_mlp.yaml:18
static void linear2_bias_gradient(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const float* d_linear2_in = (const float*)(arena + offsets[0]);
  float* d_linear2_bias_cols_out = (float*)(arena + offsets[1]);

  constexpr long block = 64, blocks = (128 + block - 1) / block;
  const long last = 1 * blocks * (slice + 1) / offsets[2];
  for (long unit = 1 * blocks * slice / offsets[2]; unit < last; ++unit) {
    const long o = unit / blocks, c0 = unit % blocks * block;
    const long count = 128 - c0 < block ? 128 - c0 : block;
    float total[block], part[block];
    for (long q = 0; q < count; ++q) total[q] = 0;
    for (long start = 0; start < rows; start += bpc_column_slice) {
      const long end = rows - start < bpc_column_slice ? rows : start + bpc_column_slice;
      for (long q = 0; q < count; ++q) part[q] = 0;
      for (long j = start; j < end; ++j) {  // specs/digits_mlp.yaml:18
        const long r = o * (rows) + j;
        (void)r;
#pragma omp simd
        for (long q = 0; q < count; ++q) {
          const long c = c0 + q;
          (void)c;
          const float d_linear2 = bpc_load(d_linear2_in, r * 128 + c);
          part[q] += float(d_linear2);
        }
      }
      for (long q = 0; q < count; ++q) total[q] = start == 0 ? part[q] : total[q] + part[q];
    }
    for (long q = 0; q < count; ++q) bpc_store(d_linear2_bias_cols_out, o * 128 + c0 + q, total[q]);
  }
}

// linear2_weight_gradient
//   acc[r, c] = sum over k < batch of relu1[k, r] * d_linear2[k, c]
//   d_linear2_weight = acc
//   reads  relu1 f32[batch, 256], d_linear2 f32[batch, 128]
//   writes d_linear2.weight f32[256, 128]
//   nodes  d_linear2.weight
//   space [256, 128]: r a row of the result, r < 256; c a column of it, c < 128
//   at 64 rows reads 98,304 B, writes 131,072 B, 4,194,304 FLOPs
//   from specs/digits_mlp.yaml:18
static void linear2_weight_gradient(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const float* relu1_in = (const float*)(arena + offsets[0]);
  const float* d_linear2_in = (const float*)(arena + offsets[1]);
  float* d_linear2_weight_out = (float*)(arena + offsets[2]);

  const bpc_tile tile = bpc_gemm_tile(256, 128, 2, 4, slice);
  bpc_gemm<float>(
      relu1_in, 1, 256, d_linear2_in, 128, 1,
      tile.m0, tile.m1, tile.n0, tile.n1, rows,
      [&](long r, long c0, long count, const float* finished) {
#pragma omp simd
        for (long q = 0; q < count; ++q) {
          const long c = c0 + q;
          const float acc = finished[q];
          const float d_linear2_weight = acc;  // linear2 weight gradient, specs/digits_mlp.yaml:18
          bpc_store(d_linear2_weight_out, r * 128 + c, d_linear2_weight);
        }
      });
}

// relu1_linear2_input_gradient
//   acc[r, c] = sum over k < 128 of d_linear2[r, k] * linear2_weight[c, k]
//   d_relu1 = acc
//   d_linear1 = 0 if relu1 <= 0 else d_relu1
//   reads  d_linear2 f32[batch, 128], linear2.weight f32[256, 128], relu1 f32[batch, 256]
//   writes d_linear1 f32[batch, 256]
//   nodes  d_relu1, d_linear1
//   space [batch, 256]: r a row of the result, r < batch; c a column of it, c < 256
//   at 64 rows reads 229,376 B, writes 65,536 B, 4,227,072 FLOPs
//   from specs/digits_mlp.yaml:18, :17
static void relu1_linear2_input_gradient(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const float* d_linear2_in = (const float*)(arena + offsets[0]);
  const float* linear2_weight_in = (const float*)(arena + offsets[1]);
  const float* relu1_in = (const float*)(arena + offsets[2]);
  float* d_linear1_out = (float*)(arena + offsets[3]);

  const bpc_tile tile = bpc_gemm_tile(rows, 256, 1, 8, slice);
  bpc_gemm<float>(
      d_linear2_in, 128, 1, linear2_weight_in, 1, 128,
      tile.m0, tile.m1, tile.n0, tile.n1, 128,
      [&](long r, long c0, long count, const float* finished) {
#pragma omp simd
        for (long q = 0; q < count; ++q) {
          const long c = c0 + q;
          const float acc = finished[q];
          const float relu1 = bpc_load(relu1_in, r * 256 + c);
          const float d_relu1 = acc;  // linear2 input gradient, specs/digits_mlp.yaml:18
          // relu1 gradient, specs/digits_mlp.yaml:17
          const float d_linear1 = (relu1 <= 0.0f ? 0.0f : d_relu1);
          bpc_store(d_linear1_out, r * 256 + c, d_linear1);
        }
      });
}

// linear1_bias_gradient
//   d_linear1_bias_cols[c] = sum over r of d_linear1[r, c]
//   reads  d_linear1 f32[batch, 256]
//   writes d_linear1.bias.cols f32[256]
//   nodes  d_linear1.bias.cols
//   space [batch, 256]: r summed, r < batch; c a column kept, c < 256
//   at 64 rows reads 65,536 B, writes 1,024 B, 16,384 FLOPs
//   from specs/digits_mlp.yaml:16
static void linear1_bias_gradient(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const float* d_linear1_in = (const float*)(arena + offsets[0]);
  float* d_linear1_bias_cols_out = (float*)(arena + offsets[1]);

  constexpr long block = 64, blocks = (256 + block - 1) / block;
  const long last = 1 * blocks * (slice + 1) / offsets[2];
  for (long unit = 1 * blocks * slice / offsets[2]; unit < last; ++unit) {
    const long o = unit / blocks, c0 = unit % blocks * block;
    const long count = 256 - c0 < block ? 256 - c0 : block;
    float total[block], part[block];
    for (long q = 0; q < count; ++q) total[q] = 0;
    for (long start = 0; start < rows; start += bpc_column_slice) {
      const long end = rows - start < bpc_column_slice ? rows : start + bpc_column_slice;
      for (long q = 0; q < count; ++q) part[q] = 0;
      for (long j = start; j < end; ++j) {  // specs/digits_mlp.yaml:16
        const long r = o * (rows) + j;
        (void)r;
#pragma omp simd
        for (long q = 0; q < count; ++q) {
          const long c = c0 + q;
          (void)c;
          const float d_linear1 = bpc_load(d_linear1_in, r * 256 + c);
          part[q] += float(d_linear1);
        }
      }
      for (long q = 0; q < count; ++q) total[q] = start == 0 ? part[q] : total[q] + part[q];
    }
    for (long q = 0; q < count; ++q) bpc_store(d_linear1_bias_cols_out, o * 256 + c0 + q, total[q]);
  }
}

// linear1_weight_gradient
//   acc[r, c] = sum over k < batch of x[k, r] * d_linear1[k, c]
//   d_linear1_weight = acc
//   reads  x f32[batch, 64], d_linear1 f32[batch, 256]
//   writes d_linear1.weight f32[64, 256]
//   nodes  d_linear1.weight
//   space [64, 256]: r a row of the result, r < 64; c a column of it, c < 256
//   at 64 rows reads 81,920 B, writes 65,536 B, 2,097,152 FLOPs
//   from specs/digits_mlp.yaml:16
static void linear1_weight_gradient(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const float* x_in = (const float*)(arena + offsets[0]);
  const float* d_linear1_in = (const float*)(arena + offsets[1]);
  float* d_linear1_weight_out = (float*)(arena + offsets[2]);

  const bpc_tile tile = bpc_gemm_tile(64, 256, 1, 8, slice);
  bpc_gemm<float>(
      x_in, 1, 64, d_linear1_in, 256, 1,
      tile.m0, tile.m1, tile.n0, tile.n1, rows,
      [&](long r, long c0, long count, const float* finished) {
#pragma omp simd
        for (long q = 0; q < count; ++q) {
          const long c = c0 + q;
          const float acc = finished[q];
          const float d_linear1_weight = acc;  // linear1 weight gradient, specs/digits_mlp.yaml:16
          bpc_store(d_linear1_weight_out, r * 256 + c, d_linear1_weight);
        }
      });
}

// norm_kernel
//   square_parameter = grad_parameter^2
//   squares_parameter_chunks[chunk] = sum of square_parameter over 4096 elements a chunk
//   of the first of 6 that it serves, norm_linear1_weight:
//   reads  grad_parameter = grad.linear1.weight f32[64, 256]
//   writes squares_parameter_chunks = squares.linear1.weight.chunks f64[4]
//   nodes  square.linear1.weight, squares.linear1.weight.chunks
//   space [64, 256], every element c
//   at any batch reads 65,536 B, writes 32 B, 32,768 FLOPs
//   from specs/digits_mlp.yaml:16, :18, :21
//   serves norm_linear1_weight [64, 256] (:16), norm_linear1_bias [256] (:16),
//          norm_linear2_weight [256, 128] (:18), norm_linear2_bias [128] (:18),
//          norm_linear3_weight [128, 10] (:21), norm_linear3_bias [10] (:21)
//   all 6: read 203,304 B, write 128 B, 101,652 FLOPs
static void norm_kernel(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const float* grad_parameter_in = (const float*)(arena + offsets[0]);
  double* squares_parameter_chunks_out = (double*)(arena + offsets[1]);

  const long first = slice * bpc_row_slice;
  const long all = offsets[3];
  const long count = all - first < bpc_row_slice ? all - first : bpc_row_slice;
  const double sum = bpc_row_sum<double>(count, [&](long q) {  // sum over the chunk, specs/digits_mlp.yaml:16
    const long c = first + q;
    const float grad_parameter = bpc_load(grad_parameter_in, c);
    // norm of linear1.weight and 5 more, specs/digits_mlp.yaml:16
    const double square_parameter = double(grad_parameter) * double(grad_parameter);
    return double(square_parameter);
  });
  bpc_store(squares_parameter_chunks_out, slice, sum);
}

// update_control
//   unscale = control_divisor / (control_weight * control_scale) if control_weight > 0 else 0
//   squares_linear1_weight = sum of the 4 values of squares_linear1_weight_chunks
//   grad_norm_linear1_weight = sqrt(squares_linear1_weight) * unscale
//   squares_linear1_bias = sum of the 1 values of squares_linear1_bias_chunks
//   grad_norm_linear1_bias = sqrt(squares_linear1_bias) * unscale
//   squares_linear2_weight = sum of the 8 values of squares_linear2_weight_chunks
//   grad_norm_linear2_weight = sqrt(squares_linear2_weight) * unscale
//   squares_linear2_bias = sum of the 1 values of squares_linear2_bias_chunks
//   grad_norm_linear2_bias = sqrt(squares_linear2_bias) * unscale
//   squares_linear3_weight = sum of the 1 values of squares_linear3_weight_chunks
//   grad_norm_linear3_weight = sqrt(squares_linear3_weight) * unscale
//   squares_linear3_bias = sum of the 1 values of squares_linear3_bias_chunks
//   grad_norm_linear3_bias = sqrt(squares_linear3_bias) * unscale
//   squares_through_linear1_bias = squares_linear1_weight + squares_linear1_bias
//   squares_through_linear2_weight = squares_through_linear1_bias + squares_linear2_weight
//   squares_through_linear2_bias = squares_through_linear2_weight + squares_linear2_bias
//   squares_through_linear3_weight = squares_through_linear2_bias + squares_linear3_weight
//   squares_through_linear3_bias = squares_through_linear3_weight + squares_linear3_bias
//   norm = sqrt(squares_through_linear3_bias) * unscale
//   nonfinite_now = 0 if isfinite(squares_through_linear3_bias) and isfinite(control_loss / (control_weight
//     if control_weight > 0 else 1)) else 1
//   nonfinite = 1 if control_late and control_found_inf else nonfinite_now
//   held = nonfinite if control_late else 0
//   factor_share = min(1, 1 / norm)
//   factor = unscale * factor_share, rounded to f32
//   update_number = control_updates + 1
//   lr = control_base_lr * min(1, update_number / max(control_warmup, 1))
//   updates = control_updates if nonfinite else update_number
//   window = control_window if held else control_window + 1
//   step_size_exact = lr / (1 - 0.9^update_number)
//   step_size = step_size_exact, rounded to f32
//   root_size_exact = 1 / sqrt(1 - 0.999^update_number)
//   root_size = root_size_exact, rounded to f32
//   reads  control.divisor f64[], control.weight f64[], control.scale f64[],
//          squares.linear1.weight.chunks f64[4], squares.linear1.bias.chunks f64[],
//          squares.linear2.weight.chunks f64[8], squares.linear2.bias.chunks f64[],
//          squares.linear3.weight.chunks f64[], squares.linear3.bias.chunks f64[],
//          control.loss f64[], control.found_inf i64[], control.late i64[], control.updates i64[],
//          control.base_lr f64[], control.warmup f64[], control.window i64[]
//   writes grad_norm.linear1.weight f64[], grad_norm.linear1.bias f64[],
//          grad_norm.linear2.weight f64[], grad_norm.linear2.bias f64[],
//          grad_norm.linear3.weight f64[], grad_norm.linear3.bias f64[], norm f64[], nonfinite i64[],
//          factor f32[], lr f64[], updates i64[], window i64[], step.size f32[], root.size f32[]
//   nodes  unscale, squares.linear1.weight, grad_norm.linear1.weight, squares.linear1.bias,
//          grad_norm.linear1.bias, squares.linear2.weight, grad_norm.linear2.weight,
//          squares.linear2.bias, grad_norm.linear2.bias, squares.linear3.weight,
//          grad_norm.linear3.weight, squares.linear3.bias, grad_norm.linear3.bias,
//          squares_through.linear1.bias, squares_through.linear2.weight,
//          squares_through.linear2.bias, squares_through.linear3.weight,
//          squares_through.linear3.bias, norm, nonfinite.now, nonfinite, held, factor.share, factor,
//          update.number, lr, updates, window, step.size.exact, step.size, root.size.exact,
//          root.size
//   space []
//   at any batch reads 208 B, writes 100 B, 139 FLOPs
//   from specs/digits_mlp.yaml:30, :16, :18, :21
static void update_control(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const double* control_divisor_in = (const double*)(arena + offsets[0]);
  const double* control_weight_in = (const double*)(arena + offsets[1]);
  const double* control_scale_in = (const double*)(arena + offsets[2]);
  const double* squares_linear1_weight_chunks_in = (const double*)(arena + offsets[3]);
  const double* squares_linear1_bias_chunks_in = (const double*)(arena + offsets[4]);
  const double* squares_linear2_weight_chunks_in = (const double*)(arena + offsets[5]);
  const double* squares_linear2_bias_chunks_in = (const double*)(arena + offsets[6]);
  const double* squares_linear3_weight_chunks_in = (const double*)(arena + offsets[7]);
  const double* squares_linear3_bias_chunks_in = (const double*)(arena + offsets[8]);
  const double* control_loss_in = (const double*)(arena + offsets[9]);
  const int64_t* control_found_inf_in = (const int64_t*)(arena + offsets[10]);
  const int64_t* control_late_in = (const int64_t*)(arena + offsets[11]);
  const int64_t* control_updates_in = (const int64_t*)(arena + offsets[12]);
  const double* control_base_lr_in = (const double*)(arena + offsets[13]);
  const double* control_warmup_in = (const double*)(arena + offsets[14]);
  const int64_t* control_window_in = (const int64_t*)(arena + offsets[15]);
  double* grad_norm_linear1_weight_out = (double*)(arena + offsets[16]);
  double* grad_norm_linear1_bias_out = (double*)(arena + offsets[17]);
  double* grad_norm_linear2_weight_out = (double*)(arena + offsets[18]);
  double* grad_norm_linear2_bias_out = (double*)(arena + offsets[19]);
  double* grad_norm_linear3_weight_out = (double*)(arena + offsets[20]);
  double* grad_norm_linear3_bias_out = (double*)(arena + offsets[21]);
  double* norm_out = (double*)(arena + offsets[22]);
  int64_t* nonfinite_out = (int64_t*)(arena + offsets[23]);
  float* factor_out = (float*)(arena + offsets[24]);
  double* lr_out = (double*)(arena + offsets[25]);
  int64_t* updates_out = (int64_t*)(arena + offsets[26]);
  int64_t* window_out = (int64_t*)(arena + offsets[27]);
  float* step_size_out = (float*)(arena + offsets[28]);
  float* root_size_out = (float*)(arena + offsets[29]);

  const double control_divisor = bpc_load(control_divisor_in, 0);
  const double control_weight = bpc_load(control_weight_in, 0);
  const double control_scale = bpc_load(control_scale_in, 0);
  const double control_loss = bpc_load(control_loss_in, 0);
  const int64_t control_found_inf = bpc_load(control_found_inf_in, 0);
  const int64_t control_late = bpc_load(control_late_in, 0);
  const int64_t control_updates = bpc_load(control_updates_in, 0);
  const double control_base_lr = bpc_load(control_base_lr_in, 0);
  const double control_warmup = bpc_load(control_warmup_in, 0);
  const int64_t control_window = bpc_load(control_window_in, 0);
  // turns kept gradients into those of the mean loss, without scale, specs/digits_mlp.yaml:30
  const double unscale = (control_weight > 0.0 ? control_divisor / (control_weight * control_scale) : 0.0);
  const double squares_linear1_weight = bpc_serial_sum<double>(squares_linear1_weight_chunks_in, 4);
  // norm of linear1.weight, specs/digits_mlp.yaml:16
  const double grad_norm_linear1_weight = bpc_sqrt(squares_linear1_weight) * unscale;
  bpc_store(grad_norm_linear1_weight_out, 0, grad_norm_linear1_weight);
  const double squares_linear1_bias = bpc_serial_sum<double>(squares_linear1_bias_chunks_in, 1);
  // norm of linear1.bias, specs/digits_mlp.yaml:16
  const double grad_norm_linear1_bias = bpc_sqrt(squares_linear1_bias) * unscale;
  bpc_store(grad_norm_linear1_bias_out, 0, grad_norm_linear1_bias);
  const double squares_linear2_weight = bpc_serial_sum<double>(squares_linear2_weight_chunks_in, 8);
  // norm of linear2.weight, specs/digits_mlp.yaml:18
  const double grad_norm_linear2_weight = bpc_sqrt(squares_linear2_weight) * unscale;
  bpc_store(grad_norm_linear2_weight_out, 0, grad_norm_linear2_weight);
  const double squares_linear2_bias = bpc_serial_sum<double>(squares_linear2_bias_chunks_in, 1);
  // norm of linear2.bias, specs/digits_mlp.yaml:18
  const double grad_norm_linear2_bias = bpc_sqrt(squares_linear2_bias) * unscale;
  bpc_store(grad_norm_linear2_bias_out, 0, grad_norm_linear2_bias);
  const double squares_linear3_weight = bpc_serial_sum<double>(squares_linear3_weight_chunks_in, 1);
  // norm of linear3.weight, specs/digits_mlp.yaml:21
  const double grad_norm_linear3_weight = bpc_sqrt(squares_linear3_weight) * unscale;
  bpc_store(grad_norm_linear3_weight_out, 0, grad_norm_linear3_weight);
  const double squares_linear3_bias = bpc_serial_sum<double>(squares_linear3_bias_chunks_in, 1);
  // norm of linear3.bias, specs/digits_mlp.yaml:21
  const double grad_norm_linear3_bias = bpc_sqrt(squares_linear3_bias) * unscale;
  bpc_store(grad_norm_linear3_bias_out, 0, grad_norm_linear3_bias);
  // running sum, up to linear1.bias, specs/digits_mlp.yaml:30
  const double squares_through_linear1_bias = squares_linear1_weight + squares_linear1_bias;
  // running sum, up to linear2.weight, specs/digits_mlp.yaml:30
  const double squares_through_linear2_weight = squares_through_linear1_bias + squares_linear2_weight;
  // running sum, up to linear2.bias, specs/digits_mlp.yaml:30
  const double squares_through_linear2_bias = squares_through_linear2_weight + squares_linear2_bias;
  // running sum, up to linear3.weight, specs/digits_mlp.yaml:30
  const double squares_through_linear3_weight = squares_through_linear2_bias + squares_linear3_weight;
  // running sum, up to linear3.bias, specs/digits_mlp.yaml:30
  const double squares_through_linear3_bias = squares_through_linear3_weight + squares_linear3_bias;
  // length of all gradients together, without scale, before clipping, specs/digits_mlp.yaml:30
  const double norm = bpc_sqrt(squares_through_linear3_bias) * unscale;
  bpc_store(norm_out, 0, norm);
  // 1 where a gradient or the loss is inf or NaN, specs/digits_mlp.yaml:30
  const int64_t nonfinite_now = (bpc_isfinite(squares_through_linear3_bias)
      && bpc_isfinite(control_loss / (control_weight > 0.0 ? control_weight : 1.0)) ? 0 : 1);
  // 1 if that is so, or was so before while the host reads late: no update is made, specs/digits_mlp.yaml:30
  const int64_t nonfinite = (control_late && control_found_inf ? 1 : nonfinite_now);
  bpc_store(nonfinite_out, 0, nonfinite);
  // 1 if the step will be run again, so that it does not count, specs/digits_mlp.yaml:30
  const int64_t held = (control_late ? nonfinite : 0);
  // what clipping leaves of every gradient: limit / norm, at most 1, specs/digits_mlp.yaml:30
  const double factor_share = bpc_min(1.0, 1.0 / norm);
  // what each kept gradient is multiplied by, specs/digits_mlp.yaml:30
  const float factor = float(unscale * factor_share);
  bpc_store(factor_out, 0, factor);
  const int64_t update_number = control_updates + 1;  // counted from 1, specs/digits_mlp.yaml:30
  // learning rate of this update, specs/digits_mlp.yaml:30
  const double lr = control_base_lr * bpc_min(1.0, double(update_number) / bpc_max(control_warmup, 1.0));
  bpc_store(lr_out, 0, lr);
  // updates made, without skipped ones, specs/digits_mlp.yaml:30
  const int64_t updates = (nonfinite ? control_updates : update_number);
  bpc_store(updates_out, 0, updates);
  // steps tried: made or skipped, specs/digits_mlp.yaml:30
  const int64_t window = (held ? control_window : control_window + 1);
  bpc_store(window_out, 0, window);
  // lr over the bias correction of the mean: lr / (1 - beta1^t), specs/digits_mlp.yaml:30
  const double step_size_exact = lr / (1.0 - bpc_pow(0.9, double(update_number)));
  // lr over the bias correction of the mean: lr / (1 - beta1^t), specs/digits_mlp.yaml:30
  const float step_size = float(step_size_exact);
  bpc_store(step_size_out, 0, step_size);
  // bias correction of the root of the mean square: 1 / sqrt(1 - beta2^t), specs/digits_mlp.yaml:30
  const double root_size_exact = 1.0 / bpc_sqrt(1.0 - bpc_pow(0.999, double(update_number)));
  // bias correction of the root of the mean square: 1 / sqrt(1 - beta2^t), specs/digits_mlp.yaml:30
  const float root_size = float(root_size_exact);
  bpc_store(root_size_out, 0, root_size);
}

// adam
//   clipped_parameter = grad_parameter * factor
//   next_m_parameter = m_parameter if nonfinite else 0.9 * m_parameter + 0.1 * clipped_parameter
//   next_v_parameter = v_parameter if nonfinite else 0.999 * v_parameter + 0.001 * clipped_parameter^2
//   next_parameter = parameter if nonfinite else parameter - step_size * next_m_parameter /
//     (sqrt(next_v_parameter) * root_size + 1e-08)
//   of the first of 6 that it serves, adam_linear1_weight:
//   reads  grad_parameter = grad.linear1.weight f32[64, 256], factor f32[],
//          m_parameter = m.linear1.weight f32[64, 256], nonfinite i64[],
//          v_parameter = v.linear1.weight f32[64, 256], parameter = linear1.weight f32[64, 256],
//          step.size f32[], root.size f32[]
//   writes next_m_parameter = next.m.linear1.weight f32[64, 256],
//          next_v_parameter = next.v.linear1.weight f32[64, 256],
//          next_parameter = next.linear1.weight f32[64, 256]
//   nodes  clipped.linear1.weight, next.m.linear1.weight, next.v.linear1.weight, next.linear1.weight
//   space [64, 256], every element c
//   at any batch reads 262,164 B, writes 196,608 B, 327,680 FLOPs
//   from specs/digits_mlp.yaml:16, :30, :18, :21
//   serves adam_linear1_weight [64, 256] (:16, :30), adam_linear1_bias [256] (:16, :30),
//          adam_linear2_weight [256, 128] (:18, :30), adam_linear2_bias [128] (:18, :30),
//          adam_linear3_weight [128, 10] (:21, :30), adam_linear3_bias [10] (:21, :30)
//   all 6: read 813,336 B, write 609,912 B, 1,016,520 FLOPs
static void adam(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const float* grad_parameter_in = (const float*)(arena + offsets[0]);
  const float* factor_in = (const float*)(arena + offsets[1]);
  const float* m_parameter_in = (const float*)(arena + offsets[2]);
  const int64_t* nonfinite_in = (const int64_t*)(arena + offsets[3]);
  const float* v_parameter_in = (const float*)(arena + offsets[4]);
  const float* parameter_in = (const float*)(arena + offsets[5]);
  const float* step_size_in = (const float*)(arena + offsets[6]);
  const float* root_size_in = (const float*)(arena + offsets[7]);
  float* next_m_parameter_out = (float*)(arena + offsets[8]);
  float* next_v_parameter_out = (float*)(arena + offsets[9]);
  float* next_parameter_out = (float*)(arena + offsets[10]);

  const float factor = bpc_load(factor_in, 0);
  const int64_t nonfinite = bpc_load(nonfinite_in, 0);
  const float step_size = bpc_load(step_size_in, 0);
  const float root_size = bpc_load(root_size_in, 0);
  const long all = offsets[12] * (offsets[13] ? rows : 1);
  const long first = bpc_cut(all, 64, offsets[11], slice);
  const long last = bpc_cut(all, 64, offsets[11], slice + 1);
#pragma omp simd
  for (long c = first; c < last; ++c) {
    const float grad_parameter = bpc_load(grad_parameter_in, c);
    const float m_parameter = bpc_load(m_parameter_in, c);
    const float v_parameter = bpc_load(v_parameter_in, c);
    const float parameter = bpc_load(parameter_in, c);
    // adam of linear1.weight and 5 more, specs/digits_mlp.yaml:16
    const float clipped_parameter = grad_parameter * factor;
    // adam of linear1.weight and 5 more, specs/digits_mlp.yaml:30
    const float next_m_parameter = (nonfinite ? m_parameter : 0.9f * m_parameter + 0.1f * clipped_parameter);
    // adam of linear1.weight and 5 more, specs/digits_mlp.yaml:30
    const float next_v_parameter = (nonfinite ? v_parameter : 0.999f * v_parameter
        + 0.001f * (clipped_parameter * clipped_parameter));
    // adam of linear1.weight and 5 more, specs/digits_mlp.yaml:30
    const float next_parameter = (nonfinite ? parameter : parameter
        - step_size * next_m_parameter / (bpc_sqrt(next_v_parameter) * root_size + 1e-08f));
    bpc_store(next_m_parameter_out, c, next_m_parameter);
    bpc_store(next_v_parameter_out, c, next_v_parameter);
    bpc_store(next_parameter_out, c, next_parameter);
  }
}

// linear2_relu2
//   acc[r, c] = sum over k < 256 of relu1[r, k] * linear2_weight[k, c]
//   linear2 = acc + linear2_bias
//   relu2 = 0 if linear2 <= 0 else linear2
//   reads  relu1 f32[batch, 256], linear2.weight f32[256, 128], linear2.bias f32[128]
//   writes relu2 f32[batch, 128]
//   nodes  linear2, relu2
//   space [batch, 128]: r a row of the result, r < batch; c a column of it, c < 128
//   at 64 rows reads 197,120 B, writes 32,768 B, 4,210,688 FLOPs
//   from specs/digits_mlp.yaml:18, :19
static void linear2_relu2(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const float* relu1_in = (const float*)(arena + offsets[0]);
  const float* linear2_weight_in = (const float*)(arena + offsets[1]);
  const float* linear2_bias_in = (const float*)(arena + offsets[2]);
  float* relu2_out = (float*)(arena + offsets[3]);

  const bpc_tile tile = bpc_gemm_tile(rows, 128, 2, 4, slice);
  bpc_gemm<float>(
      relu1_in, 256, 1, linear2_weight_in, 128, 1,
      tile.m0, tile.m1, tile.n0, tile.n1, 256,
      [&](long r, long c0, long count, const float* finished) {
#pragma omp simd
        for (long q = 0; q < count; ++q) {
          const long c = c0 + q;
          const float acc = finished[q];
          const float linear2_bias = bpc_load(linear2_bias_in, c);
          const float linear2 = acc + linear2_bias;  // linear2, specs/digits_mlp.yaml:18
          const float relu2 = (linear2 <= 0.0f ? 0.0f : linear2);  // relu2, specs/digits_mlp.yaml:19
          bpc_store(relu2_out, r * 128 + c, relu2);
        }
      });
}

// loss_cross_entropy_2
//   loss_part2[r] = max over c of linear3
//   loss_exp = exp(linear3 - loss_part2)
//   loss_sum[r] = sum over c of loss_exp
//   loss_column = the element's place along axis 1
//   loss_chosen = linear3 - loss_part2 if loss_column == target else 0
//   loss_picked[r] = sum over c of loss_chosen
//   reads  linear3 f32[batch, 10], target i64[batch]
//   writes loss.sum f32[batch], loss.picked f32[batch]
//   nodes  loss#2, loss.exp, loss.sum, loss.chosen, loss.picked
//   space [batch, 10]: row r < batch, element c < 10 of a row
//   at 64 rows reads 3,072 B, writes 512 B, 10,880 FLOPs
//   from specs/digits_mlp.yaml:24
static void loss_cross_entropy_2(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const float* linear3_in = (const float*)(arena + offsets[0]);
  const int64_t* target_in = (const int64_t*)(arena + offsets[1]);
  float* loss_sum_out = (float*)(arena + offsets[2]);
  float* loss_picked_out = (float*)(arena + offsets[3]);

  const long last = rows * (slice + 1) / offsets[4];
  for (long r = rows * slice / offsets[4]; r < last; ++r) {
    const int64_t target = bpc_load(target_in, r);
    // max over the row, specs/digits_mlp.yaml:24
    const float loss_part2 = (bpc_row_max<float>(10, [&](long c) {
      const float linear3 = bpc_load(linear3_in, r * 10 + c);
      return float(linear3);
    }));
    // sum over the row, specs/digits_mlp.yaml:24
    const float loss_sum = (bpc_row_sum<float>(10, [&](long c) {
      const float linear3 = bpc_load(linear3_in, r * 10 + c);
      const float loss_exp = bpc_exp(linear3 - loss_part2);  // loss (cross entropy), specs/digits_mlp.yaml:24
      return float(loss_exp);
    }));
    // sum over the row, specs/digits_mlp.yaml:24
    const float loss_picked = (bpc_row_sum<float>(10, [&](long c) {
      const float linear3 = bpc_load(linear3_in, r * 10 + c);
      const int64_t loss_column = c;
      // loss (cross entropy), specs/digits_mlp.yaml:24
      const float loss_chosen = (loss_column == target ? linear3 - loss_part2 : 0.0f);
      return float(loss_chosen);
    }));
    bpc_store(loss_sum_out, r, loss_sum);
    bpc_store(loss_picked_out, r, loss_picked);
  }
}

// loss_cross_entropy_total
//   loss_part3 = log(loss_sum)
//   loss_terms = loss_part3 - loss_picked
//   loss_total = sum over all c < batch of loss_terms
//   reads  loss.sum f32[batch], loss.picked f32[batch]
//   writes loss.total f64[]
//   nodes  loss#3, loss.terms, loss.total
//   space [batch, 1], taken as one row: element c < batch
//   at 64 rows reads 512 B, writes 8 B, 768 FLOPs
//   from specs/digits_mlp.yaml:24
static void loss_cross_entropy_total(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const float* loss_sum_in = (const float*)(arena + offsets[0]);
  const float* loss_picked_in = (const float*)(arena + offsets[1]);
  double* loss_total_out = (double*)(arena + offsets[2]);

  const long last = 1 * (slice + 1) / offsets[3];
  for (long r = 1 * slice / offsets[3]; r < last; ++r) {
    // sum over all c, specs/digits_mlp.yaml:24
    const double loss_total = (bpc_row_sum<double>(rows, [&](long c) {
      const float loss_sum = bpc_load(loss_sum_in, c);
      const float loss_picked = bpc_load(loss_picked_in, c);
      const float loss_part3 = bpc_log(loss_sum);  // loss (cross entropy), specs/digits_mlp.yaml:24
      const float loss_terms = loss_part3 - loss_picked;  // loss (cross entropy), specs/digits_mlp.yaml:24
      return double(loss_terms);
    }));
    bpc_store(loss_total_out, 0, loss_total);
  }
}


const bpc_kernel bpc_kernels[] = {
    linear1_relu1,
    linear2_relu2_dropout1,
    linear3,
    loss_cross_entropy_with_gradient,
    loss_cross_entropy,
    loss_cross_entropy_part1,
    linear3_bias_gradient,
    linear3_weight_gradient,
    relu2_dropout1_linear3_input_gradient,
    linear2_bias_gradient,
    linear2_weight_gradient,
    relu1_linear2_input_gradient,
    linear1_bias_gradient,
    linear1_weight_gradient,
    norm_kernel,
    update_control,
    adam,
    linear2_relu2,
    loss_cross_entropy_2,
    loss_cross_entropy_total,
};
