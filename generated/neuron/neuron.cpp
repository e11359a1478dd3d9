// neuron: kernels of the network, compiled once and run from a table of launches.
//
// Every function computes one slice of one kernel. Tensors lie in one arena; `offsets` says where,
// so that a plan for another memory budget changes neither this text nor the compiled code.
#include "bpc_conv.h"
#include "bpc_gemm.h"
#include "bpc_reduce.h"
#include "bpc_team.h"

// z_linear_a_sigmoid_with_gradient
//   acc[r, c] = sum over k < 1 of x[r, k] * z_weight[k, c]
//   z = acc + z_bias
//   a = sigmoid(z)
//   loss_seed = control_scale / control_divisor
//   d_loss_terms = loss_seed
//   d_a = d_loss_terms * (a - target)
//   d_z = d_a * (a * (1 - a))
//   reads  x f64[batch], z.weight f64[], z.bias f64[], control.scale f64[], control.divisor f64[],
//          target f64[batch]
//   writes a f64[batch], d_z f64[batch]
//   nodes  z, a, loss.seed, d_loss.terms, d_a, d_z
//   space [batch, 1]: r a row of the result, r < batch; c a column of it, c < 1
//   at 1 rows reads 48 B, writes 16 B, 20 FLOPs
//   from specs/worked/neuron.yaml:16, :17, :19
static void z_linear_a_sigmoid_with_gradient(char* arena, const int64_t* offsets, int64_t rows,
    int64_t slice) {
  const double* x_in = (const double*)(arena + offsets[0]);
  const double* z_weight_in = (const double*)(arena + offsets[1]);
  const double* z_bias_in = (const double*)(arena + offsets[2]);
  const double* control_scale_in = (const double*)(arena + offsets[3]);
  const double* control_divisor_in = (const double*)(arena + offsets[4]);
  const double* target_in = (const double*)(arena + offsets[5]);
  double* a_out = (double*)(arena + offsets[6]);
  double* d_z_out = (double*)(arena + offsets[7]);

  const double z_bias = bpc_load(z_bias_in, 0);
  const double control_scale = bpc_load(control_scale_in, 0);
  const double control_divisor = bpc_load(control_divisor_in, 0);
  const double loss_seed = control_scale / control_divisor;  // loss gradient, specs/worked/neuron.yaml:19
  const double d_loss_terms = loss_seed;  // loss gradient, specs/worked/neuron.yaml:19
  const bpc_tile tile = bpc_gemm_tile(rows, 1, 1, 1, slice);
  bpc_gemm<double>(
      x_in, 1, 1, z_weight_in, 1, 1,
      tile.m0, tile.m1, tile.n0, tile.n1, 1,
      [&](long r, long c0, long count, const double* finished) {
        const double target = bpc_load(target_in, r);
#pragma omp simd
        for (long q = 0; q < count; ++q) {
          const long c = c0 + q;
          const double acc = finished[q];
          const double z = acc + z_bias;  // z (linear), specs/worked/neuron.yaml:16
          const double a = bpc_sigmoid(z);  // a (sigmoid), specs/worked/neuron.yaml:17
          const double d_a = d_loss_terms * (a - target);  // loss gradient, specs/worked/neuron.yaml:19
          const double d_z = d_a * (a * (1.0 - a));  // a (sigmoid) gradient, specs/worked/neuron.yaml:17
          bpc_store(a_out, r, a);
          bpc_store(d_z_out, r, d_z);
        }
      });
}

// loss
//   loss_terms = 0.5 * (a - target)^2
//   loss_rows = sum over all c < batch of loss_terms
//   reads  a f64[batch], target f64[batch]
//   writes loss.rows f64[]
//   nodes  loss.terms, loss.rows
//   space [batch, 1], taken as one row: element c < batch
//   at 1 rows reads 16 B, writes 8 B, 4 FLOPs
//   from specs/worked/neuron.yaml:19
static void loss(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const double* a_in = (const double*)(arena + offsets[0]);
  const double* target_in = (const double*)(arena + offsets[1]);
  double* loss_rows_out = (double*)(arena + offsets[2]);

  const long last = 1 * (slice + 1) / offsets[3];
  for (long r = 1 * slice / offsets[3]; r < last; ++r) {
    // sum over all c, specs/worked/neuron.yaml:19
    const double loss_rows = (bpc_row_sum<double>(rows, [&](long c) {
      const double a = bpc_load(a_in, c);
      const double target = bpc_load(target_in, c);
      const double loss_terms = 0.5 * bpc_square(a - target);  // loss, specs/worked/neuron.yaml:19
      return double(loss_terms);
    }));
    bpc_store(loss_rows_out, 0, loss_rows);
  }
}

// loss_weight
//   loss_weight_extent = batch
//   loss_weight = loss_weight_extent
//   writes loss.weight f64[]
//   nodes  loss.weight
//   space []
//   at any batch reads 0 B, writes 8 B, 0 FLOPs
//   from specs/worked/neuron.yaml:19
static void loss_weight(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  double* loss_weight_out = (double*)(arena + offsets[0]);

  const int64_t loss_weight_extent = rows;
  const double loss_weight = double(loss_weight_extent);  // loss, specs/worked/neuron.yaml:19
  bpc_store(loss_weight_out, 0, loss_weight);
}

// z_bias_gradient
//   d_z_bias_cols[c] = sum over r of d_z[r, c]
//   reads  d_z f64[batch]
//   writes d_z.bias.cols f64[]
//   nodes  d_z.bias.cols
//   space [batch, 1]: r summed, r < batch; c a column kept, c < 1
//   at 1 rows reads 8 B, writes 8 B, 1 FLOPs
//   from specs/worked/neuron.yaml:16
static void z_bias_gradient(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const double* d_z_in = (const double*)(arena + offsets[0]);
  double* d_z_bias_cols_out = (double*)(arena + offsets[1]);

  constexpr long block = 64, blocks = (1 + block - 1) / block;
  const long last = 1 * blocks * (slice + 1) / offsets[2];
  for (long unit = 1 * blocks * slice / offsets[2]; unit < last; ++unit) {
    const long o = unit / blocks, c0 = unit % blocks * block;
    const long count = 1 - c0 < block ? 1 - c0 : block;
    double total[block], part[block];
    for (long q = 0; q < count; ++q) total[q] = 0;
    for (long start = 0; start < rows; start += bpc_column_slice) {
      const long end = rows - start < bpc_column_slice ? rows : start + bpc_column_slice;
      for (long q = 0; q < count; ++q) part[q] = 0;
      for (long j = start; j < end; ++j) {  // specs/worked/neuron.yaml:16
        const long r = o * (rows) + j;
        (void)r;
        const double d_z = bpc_load(d_z_in, r);
#pragma omp simd
        for (long q = 0; q < count; ++q) {
          const long c = c0 + q;
          (void)c;
          part[q] += double(d_z);
        }
      }
      for (long q = 0; q < count; ++q) total[q] = start == 0 ? part[q] : total[q] + part[q];
    }
    for (long q = 0; q < count; ++q) bpc_store(d_z_bias_cols_out, o * 1 + c0 + q, total[q]);
  }
}

// z_linear_weight_gradient
//   acc[r, c] = sum over k < batch of x[k, r] * d_z[k, c]
//   d_z_weight = acc
//   reads  x f64[batch], d_z f64[batch]
//   writes d_z.weight f64[]
//   nodes  d_z.weight
//   space [1, 1]: r a row of the result, r < 1; c a column of it, c < 1
//   at 1 rows reads 16 B, writes 8 B, 2 FLOPs
//   from specs/worked/neuron.yaml:16
static void z_linear_weight_gradient(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const double* x_in = (const double*)(arena + offsets[0]);
  const double* d_z_in = (const double*)(arena + offsets[1]);
  double* d_z_weight_out = (double*)(arena + offsets[2]);

  const bpc_tile tile = bpc_gemm_tile(1, 1, 1, 1, slice);
  bpc_gemm<double>(
      x_in, 1, 1, d_z_in, 1, 1,
      tile.m0, tile.m1, tile.n0, tile.n1, rows,
      [&](long r, long c0, long count, const double* finished) {
#pragma omp simd
        for (long q = 0; q < count; ++q) {
          const long c = c0 + q;
          const double acc = finished[q];
          const double d_z_weight = acc;  // z (linear) weight gradient, specs/worked/neuron.yaml:16
          bpc_store(d_z_weight_out, 0, d_z_weight);
        }
      });
}

// update_control
//   unscale = control_divisor / (control_weight * control_scale) if control_weight > 0 else 0
//   square_z_weight = grad_z_weight^2
//   reads  control.divisor f64[], control.weight f64[], control.scale f64[], grad.z.weight f64[]
//   writes unscale f64[], square.z.weight f64[]
//   nodes  unscale, square.z.weight
//   space []
//   at any batch reads 32 B, writes 16 B, 5 FLOPs
//   from specs/worked/neuron.yaml:24, :16
static void update_control(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const double* control_divisor_in = (const double*)(arena + offsets[0]);
  const double* control_weight_in = (const double*)(arena + offsets[1]);
  const double* control_scale_in = (const double*)(arena + offsets[2]);
  const double* grad_z_weight_in = (const double*)(arena + offsets[3]);
  double* unscale_out = (double*)(arena + offsets[4]);
  double* square_z_weight_out = (double*)(arena + offsets[5]);

  const double control_divisor = bpc_load(control_divisor_in, 0);
  const double control_weight = bpc_load(control_weight_in, 0);
  const double control_scale = bpc_load(control_scale_in, 0);
  const double grad_z_weight = bpc_load(grad_z_weight_in, 0);
  // turns kept gradients into those of the mean loss, without scale, specs/worked/neuron.yaml:24
  const double unscale = (control_weight > 0.0 ? control_divisor / (control_weight * control_scale) : 0.0);
  bpc_store(unscale_out, 0, unscale);
  // norm of z.weight, specs/worked/neuron.yaml:16
  const double square_z_weight = grad_z_weight * grad_z_weight;
  bpc_store(square_z_weight_out, 0, square_z_weight);
}

// norm_z
//   squares_z_parameter_chunks[chunk] = sum of square_z_parameter over 4096 elements a chunk
//   of the first of 2 that it serves, norm_z_weight:
//   reads  square_z_parameter = square.z.weight f64[]
//   writes squares_z_parameter_chunks = squares.z.weight.chunks f64[]
//   nodes  squares.z.weight.chunks
//   space [1, 1], every element c
//   at any batch reads 8 B, writes 8 B, 1 FLOPs
//   from specs/worked/neuron.yaml:16
//   serves norm_z_weight [1, 1] (:16), norm_z_bias [1] (:16)
//   all 2: read 16 B, write 16 B, 2 FLOPs
static void norm_z(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const double* square_z_parameter_in = (const double*)(arena + offsets[0]);
  double* squares_z_parameter_chunks_out = (double*)(arena + offsets[1]);

  const double square_z_parameter = bpc_load(square_z_parameter_in, 0);
  const long first = slice * bpc_row_slice;
  const long all = offsets[3];
  const long count = all - first < bpc_row_slice ? all - first : bpc_row_slice;
  // sum over the chunk, specs/worked/neuron.yaml:16
  const double sum = bpc_row_sum<double>(count, [&](long q) {
    const long c = first + q;
    return double(square_z_parameter);
  });
  bpc_store(squares_z_parameter_chunks_out, slice, sum);
}

// norm_all
//   squares_z_weight = sum of the 1 values of squares_z_weight_chunks
//   grad_norm_z_weight = sqrt(squares_z_weight) * unscale
//   square_z_bias = grad_z_bias^2
//   reads  squares.z.weight.chunks f64[], unscale f64[], grad.z.bias f64[]
//   writes squares.z.weight f64[], grad_norm.z.weight f64[], square.z.bias f64[]
//   nodes  squares.z.weight, grad_norm.z.weight, square.z.bias
//   space []
//   at any batch reads 24 B, writes 24 B, 7 FLOPs
//   from specs/worked/neuron.yaml:16
static void norm_all(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const double* squares_z_weight_chunks_in = (const double*)(arena + offsets[0]);
  const double* unscale_in = (const double*)(arena + offsets[1]);
  const double* grad_z_bias_in = (const double*)(arena + offsets[2]);
  double* squares_z_weight_out = (double*)(arena + offsets[3]);
  double* grad_norm_z_weight_out = (double*)(arena + offsets[4]);
  double* square_z_bias_out = (double*)(arena + offsets[5]);

  const double unscale = bpc_load(unscale_in, 0);
  const double grad_z_bias = bpc_load(grad_z_bias_in, 0);
  const double squares_z_weight = bpc_serial_sum<double>(squares_z_weight_chunks_in, 1);
  bpc_store(squares_z_weight_out, 0, squares_z_weight);
  // norm of z.weight, specs/worked/neuron.yaml:16
  const double grad_norm_z_weight = bpc_sqrt(squares_z_weight) * unscale;
  bpc_store(grad_norm_z_weight_out, 0, grad_norm_z_weight);
  const double square_z_bias = grad_z_bias * grad_z_bias;  // norm of z.bias, specs/worked/neuron.yaml:16
  bpc_store(square_z_bias_out, 0, square_z_bias);
}

// update_control_2
//   squares_z_bias = sum of the 1 values of squares_z_bias_chunks
//   grad_norm_z_bias = sqrt(squares_z_bias) * unscale
//   squares_through_z_bias = squares_z_weight + squares_z_bias
//   norm = sqrt(squares_through_z_bias) * unscale
//   nonfinite_now = 0 if isfinite(squares_through_z_bias) and isfinite(control_loss / (control_weight if
//     control_weight > 0 else 1)) else 1
//   nonfinite = 1 if control_late and control_found_inf else nonfinite_now
//   held = nonfinite if control_late else 0
//   factor = unscale
//   update_number = control_updates + 1
//   lr = control_base_lr * min(1, update_number / max(control_warmup, 1))
//   updates = control_updates if nonfinite else update_number
//   window = control_window if held else control_window + 1
//   lr_rate_exact = lr
//   lr_rate = lr_rate_exact
//   next_z_weight = z_weight if nonfinite else z_weight - lr_rate * (grad_z_weight * factor)
//   next_z_bias = z_bias if nonfinite else z_bias - lr_rate * (grad_z_bias * factor)
//   reads  squares.z.bias.chunks f64[], unscale f64[], squares.z.weight f64[], control.loss f64[],
//          control.weight f64[], control.found_inf i64[], control.late i64[], control.updates i64[],
//          control.base_lr f64[], control.warmup f64[], control.window i64[], z.weight f64[],
//          grad.z.weight f64[], z.bias f64[], grad.z.bias f64[]
//   writes grad_norm.z.bias f64[], norm f64[], nonfinite i64[], lr f64[], updates i64[],
//          window i64[], next.z.weight f64[], next.z.bias f64[]
//   nodes  squares.z.bias, grad_norm.z.bias, squares_through.z.bias, norm, nonfinite.now, nonfinite,
//          held, factor, update.number, lr, updates, window, lr.rate.exact, lr.rate, next.z.weight,
//          next.z.bias
//   space []
//   at any batch reads 120 B, writes 64 B, 38 FLOPs
//   from specs/worked/neuron.yaml:16, :24
static void update_control_2(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const double* squares_z_bias_chunks_in = (const double*)(arena + offsets[0]);
  const double* unscale_in = (const double*)(arena + offsets[1]);
  const double* squares_z_weight_in = (const double*)(arena + offsets[2]);
  const double* control_loss_in = (const double*)(arena + offsets[3]);
  const double* control_weight_in = (const double*)(arena + offsets[4]);
  const int64_t* control_found_inf_in = (const int64_t*)(arena + offsets[5]);
  const int64_t* control_late_in = (const int64_t*)(arena + offsets[6]);
  const int64_t* control_updates_in = (const int64_t*)(arena + offsets[7]);
  const double* control_base_lr_in = (const double*)(arena + offsets[8]);
  const double* control_warmup_in = (const double*)(arena + offsets[9]);
  const int64_t* control_window_in = (const int64_t*)(arena + offsets[10]);
  const double* z_weight_in = (const double*)(arena + offsets[11]);
  const double* grad_z_weight_in = (const double*)(arena + offsets[12]);
  const double* z_bias_in = (const double*)(arena + offsets[13]);
  const double* grad_z_bias_in = (const double*)(arena + offsets[14]);
  double* grad_norm_z_bias_out = (double*)(arena + offsets[15]);
  double* norm_out = (double*)(arena + offsets[16]);
  int64_t* nonfinite_out = (int64_t*)(arena + offsets[17]);
  double* lr_out = (double*)(arena + offsets[18]);
  int64_t* updates_out = (int64_t*)(arena + offsets[19]);
  int64_t* window_out = (int64_t*)(arena + offsets[20]);
  double* next_z_weight_out = (double*)(arena + offsets[21]);
  double* next_z_bias_out = (double*)(arena + offsets[22]);

  const double unscale = bpc_load(unscale_in, 0);
  const double squares_z_weight = bpc_load(squares_z_weight_in, 0);
  const double control_loss = bpc_load(control_loss_in, 0);
  const double control_weight = bpc_load(control_weight_in, 0);
  const int64_t control_found_inf = bpc_load(control_found_inf_in, 0);
  const int64_t control_late = bpc_load(control_late_in, 0);
  const int64_t control_updates = bpc_load(control_updates_in, 0);
  const double control_base_lr = bpc_load(control_base_lr_in, 0);
  const double control_warmup = bpc_load(control_warmup_in, 0);
  const int64_t control_window = bpc_load(control_window_in, 0);
  const double z_weight = bpc_load(z_weight_in, 0);
  const double grad_z_weight = bpc_load(grad_z_weight_in, 0);
  const double z_bias = bpc_load(z_bias_in, 0);
  const double grad_z_bias = bpc_load(grad_z_bias_in, 0);
  const double squares_z_bias = bpc_serial_sum<double>(squares_z_bias_chunks_in, 1);
  // norm of z.bias, specs/worked/neuron.yaml:16
  const double grad_norm_z_bias = bpc_sqrt(squares_z_bias) * unscale;
  bpc_store(grad_norm_z_bias_out, 0, grad_norm_z_bias);
  // running sum, up to z.bias, specs/worked/neuron.yaml:24
  const double squares_through_z_bias = squares_z_weight + squares_z_bias;
  // length of all gradients together, without scale, before clipping, specs/worked/neuron.yaml:24
  const double norm = bpc_sqrt(squares_through_z_bias) * unscale;
  bpc_store(norm_out, 0, norm);
  // 1 where a gradient or the loss is inf or NaN, specs/worked/neuron.yaml:24
  const int64_t nonfinite_now = (bpc_isfinite(squares_through_z_bias)
      && bpc_isfinite(control_loss / (control_weight > 0.0 ? control_weight : 1.0)) ? 0 : 1);
  // 1 if that is so, or was so before while the host reads late: no update is made,
  //   specs/worked/neuron.yaml:24
  const int64_t nonfinite = (control_late && control_found_inf ? 1 : nonfinite_now);
  bpc_store(nonfinite_out, 0, nonfinite);
  // 1 if the step will be run again, so that it does not count, specs/worked/neuron.yaml:24
  const int64_t held = (control_late ? nonfinite : 0);
  const double factor = unscale;  // what each kept gradient is multiplied by, specs/worked/neuron.yaml:24
  const int64_t update_number = control_updates + 1;  // counted from 1, specs/worked/neuron.yaml:24
  // learning rate of this update, specs/worked/neuron.yaml:24
  const double lr = control_base_lr * bpc_min(1.0, double(update_number) / bpc_max(control_warmup, 1.0));
  bpc_store(lr_out, 0, lr);
  // updates made, without skipped ones, specs/worked/neuron.yaml:24
  const int64_t updates = (nonfinite ? control_updates : update_number);
  bpc_store(updates_out, 0, updates);
  // steps tried: made or skipped, specs/worked/neuron.yaml:24
  const int64_t window = (held ? control_window : control_window + 1);
  bpc_store(window_out, 0, window);
  const double lr_rate_exact = lr;  // lr in the type of the weights, specs/worked/neuron.yaml:24
  const double lr_rate = lr_rate_exact;  // lr in the type of the weights, specs/worked/neuron.yaml:24
  // sgd of z.weight, specs/worked/neuron.yaml:16
  const double next_z_weight = (nonfinite ? z_weight : z_weight - lr_rate * (grad_z_weight * factor));
  bpc_store(next_z_weight_out, 0, next_z_weight);
  // sgd of z.bias, specs/worked/neuron.yaml:16
  const double next_z_bias = (nonfinite ? z_bias : z_bias - lr_rate * (grad_z_bias * factor));
  bpc_store(next_z_bias_out, 0, next_z_bias);
}

// z_linear_a_sigmoid
//   acc[r, c] = sum over k < 1 of x[r, k] * z_weight[k, c]
//   z = acc + z_bias
//   a = sigmoid(z)
//   reads  x f64[batch], z.weight f64[], z.bias f64[]
//   writes a f64[batch]
//   nodes  z, a
//   space [batch, 1]: r a row of the result, r < batch; c a column of it, c < 1
//   at 1 rows reads 24 B, writes 8 B, 14 FLOPs
//   from specs/worked/neuron.yaml:16, :17
static void z_linear_a_sigmoid(char* arena, const int64_t* offsets, int64_t rows, int64_t slice) {
  const double* x_in = (const double*)(arena + offsets[0]);
  const double* z_weight_in = (const double*)(arena + offsets[1]);
  const double* z_bias_in = (const double*)(arena + offsets[2]);
  double* a_out = (double*)(arena + offsets[3]);

  const double z_bias = bpc_load(z_bias_in, 0);
  const bpc_tile tile = bpc_gemm_tile(rows, 1, 1, 1, slice);
  bpc_gemm<double>(
      x_in, 1, 1, z_weight_in, 1, 1,
      tile.m0, tile.m1, tile.n0, tile.n1, 1,
      [&](long r, long c0, long count, const double* finished) {
#pragma omp simd
        for (long q = 0; q < count; ++q) {
          const long c = c0 + q;
          const double acc = finished[q];
          const double z = acc + z_bias;  // z (linear), specs/worked/neuron.yaml:16
          const double a = bpc_sigmoid(z);  // a (sigmoid), specs/worked/neuron.yaml:17
          bpc_store(a_out, r, a);
        }
      });
}


const bpc_kernel bpc_kernels[] = {
    z_linear_a_sigmoid_with_gradient,
    loss,
    loss_weight,
    z_bias_gradient,
    z_linear_weight_gradient,
    update_control,
    norm_z,
    norm_all,
    update_control_2,
    z_linear_a_sigmoid,
};
