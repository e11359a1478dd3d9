// digits-mlp: kernels of the network as CUDA C++, in the order of their first launch.
//
// micro_step: the batch of a step forward and back: loss, gradient of every parameter
//    launches linear1_relu1, linear2_relu2_dropout1, linear3, loss_cross_entropy_with_gradient,
//             linear3_bias_gradient, linear3_weight_gradient,
//             relu2_dropout1_linear3_input_gradient, linear2_bias_gradient,
//             linear2_weight_gradient, relu1_linear2_input_gradient, linear1_bias_gradient,
//             linear1_weight_gradient
//    keeps    loss.total as control.loss, loss#1 as control.weight,
//             d_<t>.cols as grad.<t> (3 tensors), d_<t> as grad.<t> (3 tensors)
// update: once a step: from the gradients to new weights
//    launches norm_and_control, adam
//    keeps    grad_norm.<t> as norm.<t> (6 tensors), norm as control.norm,
//             nonfinite as control.found_inf, lr as control.lr, updates as control.updates,
//             window as control.window, next.m.<t> as m.<t> (6 tensors),
//             next.v.<t> as v.<t> (6 tensors), next.<t> as <t> (6 tensors)
// evaluate: the loss of a batch, with nothing kept for gradients
//    launches linear1_relu1, linear2_relu2, linear3, loss_cross_entropy
//    gives    linear3 as prediction, loss.total as loss, loss#1 as weight
// predict: the model's result for a batch
//    launches linear1_relu1, linear2_relu2, linear3
//    gives    linear3 as prediction
//
// A network is a graph of nodes, each of which makes a tensor or several; an entry point is a call
// with launches of its own. Tensors lie in one arena. launch.json says for each launch how many
// blocks of how many threads it has, and where in the arena the tensor of each argument begins.
// Tensors are dense, the last axis is contiguous; `batch` in a shape is the number of rows of the
// batch at hand, and [] is a single number. Dots in the name of a tensor are underscores in the
// text. `keeps a as b`: the result a is written straight into the memory of b, which lasts from
// launch to launch; a_out and b_in are then one address. A result may also take the place of a
// tensor that is not read again (launch.json: the same offset). Numbers are computed in the type
// of their declaration or cast. Most statements have the layer and line that they come from
// behind or above them. <t> stands for the name of a tensor:
//
//   <t>_in, <t>_out  pointers to a tensor that a kernel reads, and to one that it writes; <t> in
//                    a statement is one element of it. In a function with both for one <t>, they
//                    are one address: its blocks write the tensor, its last block reads it
//   <t>_part2        in lists of tensors <t>#2: result number 2 of the node <t>, which makes
//                    several, from number 0 on
//   d_<t>            the gradient of the loss (times scale / divisor) with respect to <t>
//   grad_<t>         the gradient of a parameter <t>, kept from micro_step to update: micro_step
//                    writes its d_<t> straight there (`keeps` above)
//   next_<t>         the value of <t> after the update, written in place: next_<t>_out and
//                    <t>_in are one address
//   <t>.cols         <t> as sums over rows: a number a column
//   <t>.chunks       sums of <t> over chunks of 4096 elements, added up later
//   parameter        of many parameters the one that a block serves
//   r, c             the row and the column (the place in the row) of an element; of a tensor
//                    taken as one row, r is 0 and c the place in the tensor
//   acc              the finished sum of products, before bias and activation
//   finished, count  the finished sums that one thread has of one row r: count of them, at the
//                    columns from c0 on; bpc_thread_n is the most there are, q counts them
//   rows_in          holds the rows of the batch at hand. A grid is made for the planned batch,
//                    64 rows: a block whose rows all lie beyond the batch computes no element,
//                    but draws its ticket where there is one. Sums over a batch of no rows are 0
//   table, parts     one launch for many tensors: a table with a row for each of the `parts`
//                    tensors; `part` is the row that this block works on
//   _pack            neighbouring elements in one thread's registers: `all` is their number in
//                    the tensor, c0 the first of this thread
//   ticket           counts the blocks that are done, to find the last
//
// Control numbers, which last: the host sets them for a run, before a step or before a batch, or
// an entry point writes them:
//
//   control_scale      factor of the loss; this network needs none, it is 1
//   control_divisor    terms that the step's loss will have; the host counts them before the
//                      step
//   control_weight     terms that the loss did have; by micro_step. update multiplies gradients,
//                      which were divided by divisor, by divisor / weight
//   control_loss       sum of the terms, not yet divided; by micro_step
//   control_base_lr    learning rate before anything scales it; set for a run
//   control_warmup     updates over which the learning rate rises to its base; set for a run
//   control_lr         learning rate of the last step, skipped or not; by update, for the host
//                      to read
//   control_norm       length of all gradients together, without scale, before clipping; by
//                      update, for the host to read
//   control_seed       of random draws; set for a run
//   control_window     steps so far: those made and those skipped, not those that will be run
//                      again (late); 0 at first, then by update
//   control_first_row  rows of the step's batches before this one; the host sets it before a
//                      batch
//   control_updates    updates so far, without skipped ones; 0 at first, then by update
//   control_found_inf  1 where a gradient or the loss was inf or NaN, or was so in a step before
//                      while late is 1, so that no update was made: weights, moments and updates
//                      stay; by update, for the host to read. The host sets it to 0 whenever it
//                      changes late
//   control_late       1 while the host starts a step before it has read found_inf of the one
//                      before. After a step with inf or NaN, weights, moments, updates and
//                      window stay and found_inf is 1, and so after all that follow, until the
//                      host sees it. It sets late to 0, runs the first of these steps again,
//                      which now counts as skipped, and then those behind it; after one that is
//                      finite it may set late to 1 again
//
// Helpers, from bpc_cuda.h and what it includes:
//
//   bpc_load, bpc_store         element i of memory from and to a register
//   bpc_bit_load                element i of a mask: bit i % 8 of byte i / 8
//   bpc_load_pack, _store_pack  neighbouring elements, moved 16 bytes at a time; those beyond
//                               the end are left out
//   bpc_row_sum, _max           one warp reduces f(0) ... f(n - 1) in a fixed order; all lanes
//                               take part and get the result
//   bpc_held_sum, _max          the same for a row of n elements that lies in the warp's
//                               registers: <t>_held[k] is element lane % bpc_lanes + bpc_lanes k
//                               (bpc_lanes is 16), the same in both halves of the warp, since
//                               sums have the order of 16 lanes; elements from n on are left out
//   bpc_held                    of these registers, element lane + bpc_warp k (bpc_warp is 32):
//                               <t>_held[2 k] in the lower half of the warp, <t>_held[2 k + 1]
//                               in the upper
//   bpc_serial_sum              one thread adds n numbers in a fixed order
//   bpc_gemm                    one block makes a tile of 64 x 64 sums, each one chain of fused
//                               multiply-adds over ascending k, and each thread hands its sums
//                               (bpc_thread_n of a row at a time) to the function at the end of
//                               its arguments; what of a tile lies beyond m or n is left out.
//                               Blocks take the tiles of the first 64 rows, from left to right,
//                               then those of the next
//   bpc_find_part               the row of the table whose blocks include this one
//   bpc_last_block              true in all threads of the block that draws the last ticket:
//                               what all other blocks wrote is then visible to it (fences), and
//                               the ticket is 0 again; false in the others
//   bpc_uniform                 a random number from 0 to 1 that its arguments alone decide
//   bpc_exp, ...                functions of numbers, with the same bits on every target
//
// FLOPs: a product has 2 for each term of its sums, the bias is not counted on its own; an
// element-wise operation, comparison or choice has 1, functions more; a sum 1 an element.
typedef int bpc_index;  // of elements: 32 bits where every tensor is small enough
#include "bpc_cuda.h"

// ==== micro_step ================================================================================

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
//   4 blocks of 128 threads: a block makes 64 x 64 elements of acc, each thread 4 x 8 of them
extern "C" __global__ __launch_bounds__(128,1) void linear1_relu1(
    const float* x_in,
    const float* linear1_weight_in,
    const float* linear1_bias_in,
    float* relu1_out,
    const int64_t* rows_in) {
  const int block = blockIdx.x;
  const bpc_index rows = bpc_index(*rows_in);

  // acc[r, c] for r < m = rows and c < n = 256, each a sum of k = 64 products. Arguments: left
  // factor and its strides by r and k, right factor and its strides by k and c, then m, n, k
  bpc_gemm<float>(
      block, x_in, 64, 1, linear1_weight_in, 256, 1, rows, 256, 64,
      [&](bpc_index r, bpc_index c0, int count, const float* finished) {
#pragma unroll
        for (int q = 0; q < bpc_thread_n; ++q) {
          if (q < count) {
            const bpc_index c = c0 + q;
            const float acc = finished[q];
            const float linear1_bias = bpc_load(linear1_bias_in, c);
            const float linear1 = acc + linear1_bias;  // linear1, specs/digits_mlp.yaml:16
            const float relu1 = (linear1 <= 0.0f ? 0.0f : linear1);  // relu1, specs/digits_mlp.yaml:17
            bpc_store(relu1_out, r * 256 + c, relu1);
          }
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
//   2 blocks of 128 threads: a block makes 64 x 64 elements of acc, each thread 4 x 8 of them
extern "C" __global__ __launch_bounds__(128,1) void linear2_relu2_dropout1(
    const float* relu1_in,
    const float* linear2_weight_in,
    const float* linear2_bias_in,
    const int64_t* control_seed_in,
    const int64_t* control_window_in,
    const int64_t* control_first_row_in,
    uint8_t* relu2_mask_out,
    float* dropout1_out,
    const int64_t* rows_in) {
  const int block = blockIdx.x;
  const bpc_index rows = bpc_index(*rows_in);

  const int64_t control_seed = bpc_load(control_seed_in, 0);
  const int64_t control_window = bpc_load(control_window_in, 0);
  const int64_t control_first_row = bpc_load(control_first_row_in, 0);
  // acc[r, c] for r < m = rows and c < n = 128, each a sum of k = 256 products. Arguments: left
  // factor and its strides by r and k, right factor and its strides by k and c, then m, n, k
  bpc_gemm<float>(
      block, relu1_in, 256, 1, linear2_weight_in, 128, 1, rows, 128, 256,
      [&](bpc_index r, bpc_index c0, int count, const float* finished) {
        unsigned relu2_mask_out_byte = 0;
#pragma unroll
        for (int q = 0; q < bpc_thread_n; ++q) {
          if (q < count) {
            const bpc_index c = c0 + q;
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
            relu2_mask_out_byte |= unsigned(relu2_mask) << q;
          }
        }
        relu2_mask_out[(r * 128 + c0) >> 3] = uint8_t(relu2_mask_out_byte);
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
//   1 block of 128 threads: a block makes 64 x 64 elements of acc, each thread 4 x 8 of them
extern "C" __global__ __launch_bounds__(128,1) void linear3(
    const float* dropout1_in,
    const float* linear3_weight_in,
    const float* linear3_bias_in,
    float* linear3_out,
    const int64_t* rows_in) {
  const int block = blockIdx.x;
  const bpc_index rows = bpc_index(*rows_in);

  // acc[r, c] for r < m = rows and c < n = 10, each a sum of k = 128 products. Arguments: left
  // factor and its strides by r and k, right factor and its strides by k and c, then m, n, k
  bpc_gemm<float>(
      block, dropout1_in, 128, 1, linear3_weight_in, 10, 1, rows, 10, 128,
      [&](bpc_index r, bpc_index c0, int count, const float* finished) {
#pragma unroll
        for (int q = 0; q < bpc_thread_n; ++q) {
          if (q < count) {
            const bpc_index c = c0 + q;
            const float acc = finished[q];
            const float linear3_bias = bpc_load(linear3_bias_in, c);
            const float linear3 = acc + linear3_bias;  // linear3, specs/digits_mlp.yaml:21
            bpc_store(linear3_out, r * 10 + c, linear3);
          }
        }
      });
}

// loss_cross_entropy_with_gradient_rows
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
//   16 blocks of 128 threads: each warp computes one row, 4 rows a block
//   runs in every block of loss_cross_entropy_with_gradient
static __device__ void loss_cross_entropy_with_gradient_rows(
    int block,
    const float* linear3_in,
    const int64_t* target_in,
    const double* control_scale_in,
    const double* control_divisor_in,
    float* loss_part3_out,
    float* loss_picked_out,
    float* d_linear3_out,
    const int64_t* rows_in) {
  const bpc_index rows = bpc_index(*rows_in);

  const bpc_index r = bpc_index(block) * (128 / bpc_warp) + threadIdx.x / bpc_warp;
  if (r >= rows) return;  // the whole warp: one warp computes one row
  const int lane = threadIdx.x % bpc_warp;
  const double control_scale = bpc_load(control_scale_in, 0);
  const double control_divisor = bpc_load(control_divisor_in, 0);
  const float loss_seed = float(control_scale / control_divisor);  // loss gradient, specs/digits_mlp.yaml:24
  // the row is read once: each thread holds elements lane % 16 + 16 k of it, both halves the same
  float linear3_held[2] = {};
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const bpc_index c = lane % bpc_lanes + k * bpc_lanes;
    if (c < 10) {
      linear3_held[k] = bpc_load(linear3_in, r * 10 + c);
    }
  }
  const int64_t target = bpc_load(target_in, r);
  // max over the row, specs/digits_mlp.yaml:24
  const float loss_part2 = (bpc_held_max<float, 10>([&](bpc_index c, int k) {
    const float linear3 = linear3_held[k];
    return float(linear3);
  }));
  // sum over the row, specs/digits_mlp.yaml:24
  const float loss_sum = (bpc_held_sum<float, 10>([&](bpc_index c, int k) {
    const float linear3 = linear3_held[k];
    const float loss_exp = bpc_exp(linear3 - loss_part2);  // loss (cross entropy), specs/digits_mlp.yaml:24
    return float(loss_exp);
  }));
  const float loss_part3 = bpc_log(loss_sum);  // loss (cross entropy), specs/digits_mlp.yaml:24
  // sum over the row, specs/digits_mlp.yaml:24
  const float loss_picked = (bpc_held_sum<float, 10>([&](bpc_index c, int k) {
    const float linear3 = linear3_held[k];
    const int64_t loss_column_2 = c;
    // loss (cross entropy), specs/digits_mlp.yaml:24
    const float loss_chosen = (loss_column_2 == target ? linear3 - loss_part2 : 0.0f);
    return float(loss_chosen);
  }));
  __syncwarp();  // all lanes hold what they need of the row: a result may lie where it lay
  if (lane == 0) {
    bpc_store(loss_part3_out, r, loss_part3);
    bpc_store(loss_picked_out, r, loss_picked);
  }
#pragma unroll
  for (int k = 0; k < 1; ++k) {
    const bpc_index c = lane + k * bpc_warp;
    if (c < 10) {
      const float linear3 = bpc_held(linear3_held, k);
      const int64_t loss_column_2 = c;
      // loss (cross entropy) gradient, specs/digits_mlp.yaml:24
      const float d_linear3 = loss_seed
          * (bpc_exp(linear3 - loss_part2 - loss_part3) - (loss_column_2 == target ? 1.0f : 0.0f));
      bpc_store(d_linear3_out, r * 10 + c, d_linear3);
    }
  }
}

// loss_cross_entropy_finish
//   loss_terms = loss_part3 - loss_picked
//   loss_total = sum over all c < batch of loss_terms
//   reads  loss_part3 = loss#3 f32[batch], loss.picked f32[batch]
//   writes loss.total f64[]
//   nodes  loss.terms, loss.total
//   space [batch, 1], taken as one row: element c < batch
//   at 64 rows reads 512 B, writes 8 B, 128 FLOPs
//   from specs/digits_mlp.yaml:24
//   runs in one warp of the last block of loss_cross_entropy_with_gradient
static __device__ void loss_cross_entropy_finish(
    int block,
    const float* loss_part3_in,
    const float* loss_picked_in,
    double* loss_total_out,
    const int64_t* rows_in) {
  const bpc_index rows = bpc_index(*rows_in);

  const bpc_index r = bpc_index(block) * (128 / bpc_warp) + threadIdx.x / bpc_warp;
  if (r >= 1) return;  // the whole warp: one warp computes one row
  const int lane = threadIdx.x % bpc_warp;
  // sum over all c, specs/digits_mlp.yaml:24
  const double loss_total = (bpc_row_sum<double>(rows, [&](bpc_index c) {
    const float loss_part3 = bpc_load(loss_part3_in, c);
    const float loss_picked = bpc_load(loss_picked_in, c);
    const float loss_terms = loss_part3 - loss_picked;  // loss (cross entropy), specs/digits_mlp.yaml:24
    return double(loss_terms);
  }));
  __syncwarp();  // all lanes have read the row: a result may lie where it lay
  if (lane == 0) {
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
//   runs in one thread of the last block of loss_cross_entropy_with_gradient, loss_cross_entropy
static __device__ void loss_cross_entropy_part1(
    int block,
    double* loss_part1_out,
    const int64_t* rows_in) {
  const bpc_index rows = bpc_index(*rows_in);

  if (threadIdx.x != 0) return;
  const int64_t loss_part1_extent = rows;
  const double loss_part1 = double(loss_part1_extent);  // loss (cross entropy), specs/digits_mlp.yaml:24
  bpc_store(loss_part1_out, 0, loss_part1);
}

// loss_cross_entropy_with_gradient
//   every block runs loss_cross_entropy_with_gradient_rows; the block that finishes last goes on:
//   then   loss_cross_entropy_finish (one warp), loss_cross_entropy_part1 (one thread)
//   reads  linear3 f32[batch, 10], target i64[batch], control.scale f64[], control.divisor f64[]
//   writes loss_part3 = loss#3 f32[batch], loss.picked f32[batch], d_linear3 f32[batch, 10],
//          loss.total f64[], loss_part1 = loss#1 f64[]
//   nodes  loss#2, loss.exp, loss.sum, loss#3, loss.chosen, loss.picked, loss.seed, d_linear3,
//          loss.terms, loss.total, loss#1
//   from specs/digits_mlp.yaml:24
extern "C" __global__ __launch_bounds__(128,1) void loss_cross_entropy_with_gradient(
    const float* linear3_in,
    const int64_t* target_in,
    const double* control_scale_in,
    const double* control_divisor_in,
    float* loss_part3_out,
    float* loss_picked_out,
    float* d_linear3_out,
    const int64_t* rows_in,
    const float* loss_part3_in,
    const float* loss_picked_in,
    double* loss_total_out,
    double* loss_part1_out,
    unsigned* ticket) {
  loss_cross_entropy_with_gradient_rows(blockIdx.x, linear3_in, target_in, control_scale_in,
      control_divisor_in, loss_part3_out, loss_picked_out, d_linear3_out, rows_in);
  if (!bpc_last_block(ticket)) return;
  loss_cross_entropy_finish(0, loss_part3_in, loss_picked_in, loss_total_out, rows_in);
  __syncthreads();
  loss_cross_entropy_part1(0, loss_part1_out, rows_in);
}

// linear3_bias_gradient
//   d_linear3_bias_cols[c] = sum over r of d_linear3[r, c]
//   reads  d_linear3 f32[batch, 10]
//   writes d_linear3.bias.cols f32[10]
//   nodes  d_linear3.bias.cols
//   space [batch, 10]: r summed, r < batch; c a column kept, c < 10
//   at 64 rows reads 2,560 B, writes 40 B, 640 FLOPs
//   from specs/digits_mlp.yaml:21
//   1 block of 256 threads: a block makes 32 columns; its 8 warps take slices of 256 rows in turn
extern "C" __global__ __launch_bounds__(256,1) void linear3_bias_gradient(
    const float* d_linear3_in,
    float* d_linear3_bias_cols_out,
    const int64_t* rows_in) {
  const int block = blockIdx.x;
  const bpc_index rows = bpc_index(*rows_in);

  // 32 columns by 8 warps: in each round warp w sums the 256 (bpc_column_slice) rows from
  // round + 256 w on, then warp 0 adds the sums to the total in the order of their rows
  __shared__ float parts[8][bpc_warp];
  const int column = threadIdx.x % bpc_warp, slot = threadIdx.x / bpc_warp;
  constexpr bpc_index blocks = (10 + bpc_warp - 1) / bpc_warp;
  const bpc_index c = block % blocks * bpc_warp + column;
  float total = 0;
  for (bpc_index round = 0; round < rows; round += 8 * bpc_column_slice) {
    const bpc_index start = round + slot * bpc_column_slice;
    const bpc_index end = rows - start < bpc_column_slice ? rows : start + bpc_column_slice;
    float sum = 0;
    for (bpc_index r = start; r < end && c < 10; ++r) {  // specs/digits_mlp.yaml:21
      const float d_linear3 = bpc_load(d_linear3_in, r * 10 + c);
      sum += float(d_linear3);
    }
    parts[slot][column] = sum;
    __syncthreads();
    if (slot == 0) {
      for (int s = 0; s < 8 && round + s * bpc_column_slice < rows; ++s) {
        total += parts[s][column];
      }
    }
    __syncthreads();
  }
  if (slot == 0 && c < 10) bpc_store(d_linear3_bias_cols_out, c, total);
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
//   2 blocks of 128 threads: a block makes 64 x 64 elements of acc, each thread 4 x 8 of them
extern "C" __global__ __launch_bounds__(128,1) void linear3_weight_gradient(
    const float* dropout1_in,
    const float* d_linear3_in,
    float* d_linear3_weight_out,
    const int64_t* rows_in) {
  const int block = blockIdx.x;
  const bpc_index rows = bpc_index(*rows_in);

  // acc[r, c] for r < m = 128 and c < n = 10, each a sum of k = rows products. Arguments: left
  // factor and its strides by r and k, right factor and its strides by k and c, then m, n, k
  bpc_gemm<float>(
      block, dropout1_in, 1, 128, d_linear3_in, 10, 1, 128, 10, rows,
      [&](bpc_index r, bpc_index c0, int count, const float* finished) {
#pragma unroll
        for (int q = 0; q < bpc_thread_n; ++q) {
          if (q < count) {
            const bpc_index c = c0 + q;
            const float acc = finished[q];
            const float d_linear3_weight = acc;  // linear3 weight gradient, specs/digits_mlp.yaml:21
            bpc_store(d_linear3_weight_out, r * 10 + c, d_linear3_weight);
          }
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
//   2 blocks of 128 threads: a block makes 64 x 64 elements of acc, each thread 4 x 8 of them
extern "C" __global__ __launch_bounds__(128,1) void relu2_dropout1_linear3_input_gradient(
    const float* d_linear3_in,
    const float* linear3_weight_in,
    const int64_t* control_seed_in,
    const int64_t* control_window_in,
    const int64_t* control_first_row_in,
    const uint8_t* relu2_mask_in,
    float* d_linear2_out,
    const int64_t* rows_in) {
  const int block = blockIdx.x;
  const bpc_index rows = bpc_index(*rows_in);

  const int64_t control_seed = bpc_load(control_seed_in, 0);
  const int64_t control_window = bpc_load(control_window_in, 0);
  const int64_t control_first_row = bpc_load(control_first_row_in, 0);
  // acc[r, c] for r < m = rows and c < n = 128, each a sum of k = 10 products. Arguments: left
  // factor and its strides by r and k, right factor and its strides by k and c, then m, n, k
  bpc_gemm<float>(
      block, d_linear3_in, 10, 1, linear3_weight_in, 1, 10, rows, 128, 10,
      [&](bpc_index r, bpc_index c0, int count, const float* finished) {
#pragma unroll
        for (int q = 0; q < bpc_thread_n; ++q) {
          if (q < count) {
            const bpc_index c = c0 + q;
            const float acc = finished[q];
            const bool relu2_mask = bpc_bit_load(relu2_mask_in, r * 128 + c);
            const float d_dropout1 = acc;  // linear3 input gradient, specs/digits_mlp.yaml:21
            const int64_t d_relu2_element = r * 128 + c + control_first_row * 128;
            // dropout1 gradient, specs/digits_mlp.yaml:20
            const float d_relu2 = (bpc_uniform(control_seed, control_window, 1643519052,
                d_relu2_element) >= 0.2f ? 1.25f * d_dropout1 : 0.0f);
            // relu2 gradient, specs/digits_mlp.yaml:19
            const float d_linear2 = (relu2_mask ? 0.0f : d_relu2);
            bpc_store(d_linear2_out, r * 128 + c, d_linear2);
          }
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
//   4 blocks of 256 threads: a block makes 32 columns; its 8 warps take slices of 256 rows in turn
extern "C" __global__ __launch_bounds__(256,1) void linear2_bias_gradient(
    const float* d_linear2_in,
    float* d_linear2_bias_cols_out,
    const int64_t* rows_in) {
  const int block = blockIdx.x;
  const bpc_index rows = bpc_index(*rows_in);

  // 32 columns by 8 warps: in each round warp w sums the 256 (bpc_column_slice) rows from
  // round + 256 w on, then warp 0 adds the sums to the total in the order of their rows
  __shared__ float parts[8][bpc_warp];
  const int column = threadIdx.x % bpc_warp, slot = threadIdx.x / bpc_warp;
  constexpr bpc_index blocks = (128 + bpc_warp - 1) / bpc_warp;
  const bpc_index c = block % blocks * bpc_warp + column;
  float total = 0;
  for (bpc_index round = 0; round < rows; round += 8 * bpc_column_slice) {
    const bpc_index start = round + slot * bpc_column_slice;
    const bpc_index end = rows - start < bpc_column_slice ? rows : start + bpc_column_slice;
    float sum = 0;
    for (bpc_index r = start; r < end && c < 128; ++r) {  // specs/digits_mlp.yaml:18
      const float d_linear2 = bpc_load(d_linear2_in, r * 128 + c);
      sum += float(d_linear2);
    }
    parts[slot][column] = sum;
    __syncthreads();
    if (slot == 0) {
      for (int s = 0; s < 8 && round + s * bpc_column_slice < rows; ++s) {
        total += parts[s][column];
      }
    }
    __syncthreads();
  }
  if (slot == 0 && c < 128) bpc_store(d_linear2_bias_cols_out, c, total);
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
//   8 blocks of 128 threads: a block makes 64 x 64 elements of acc, each thread 4 x 8 of them
extern "C" __global__ __launch_bounds__(128,1) void linear2_weight_gradient(
    const float* relu1_in,
    const float* d_linear2_in,
    float* d_linear2_weight_out,
    const int64_t* rows_in) {
  const int block = blockIdx.x;
  const bpc_index rows = bpc_index(*rows_in);

  // acc[r, c] for r < m = 256 and c < n = 128, each a sum of k = rows products. Arguments: left
  // factor and its strides by r and k, right factor and its strides by k and c, then m, n, k
  bpc_gemm<float>(
      block, relu1_in, 1, 256, d_linear2_in, 128, 1, 256, 128, rows,
      [&](bpc_index r, bpc_index c0, int count, const float* finished) {
#pragma unroll
        for (int q = 0; q < bpc_thread_n; ++q) {
          if (q < count) {
            const bpc_index c = c0 + q;
            const float acc = finished[q];
            const float d_linear2_weight = acc;  // linear2 weight gradient, specs/digits_mlp.yaml:18
            bpc_store(d_linear2_weight_out, r * 128 + c, d_linear2_weight);
          }
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
//   4 blocks of 128 threads: a block makes 64 x 64 elements of acc, each thread 4 x 8 of them
extern "C" __global__ __launch_bounds__(128,1) void relu1_linear2_input_gradient(
    const float* d_linear2_in,
    const float* linear2_weight_in,
    const float* relu1_in,
    float* d_linear1_out,
    const int64_t* rows_in) {
  const int block = blockIdx.x;
  const bpc_index rows = bpc_index(*rows_in);

  // acc[r, c] for r < m = rows and c < n = 256, each a sum of k = 128 products. Arguments: left
  // factor and its strides by r and k, right factor and its strides by k and c, then m, n, k
  bpc_gemm<float>(
      block, d_linear2_in, 128, 1, linear2_weight_in, 1, 128, rows, 256, 128,
      [&](bpc_index r, bpc_index c0, int count, const float* finished) {
#pragma unroll
        for (int q = 0; q < bpc_thread_n; ++q) {
          if (q < count) {
            const bpc_index c = c0 + q;
            const float acc = finished[q];
            const float relu1 = bpc_load(relu1_in, r * 256 + c);
            const float d_relu1 = acc;  // linear2 input gradient, specs/digits_mlp.yaml:18
            // relu1 gradient, specs/digits_mlp.yaml:17
            const float d_linear1 = (relu1 <= 0.0f ? 0.0f : d_relu1);
            bpc_store(d_linear1_out, r * 256 + c, d_linear1);
          }
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
//   8 blocks of 256 threads: a block makes 32 columns; its 8 warps take slices of 256 rows in turn
extern "C" __global__ __launch_bounds__(256,1) void linear1_bias_gradient(
    const float* d_linear1_in,
    float* d_linear1_bias_cols_out,
    const int64_t* rows_in) {
  const int block = blockIdx.x;
  const bpc_index rows = bpc_index(*rows_in);

  // 32 columns by 8 warps: in each round warp w sums the 256 (bpc_column_slice) rows from
  // round + 256 w on, then warp 0 adds the sums to the total in the order of their rows
  __shared__ float parts[8][bpc_warp];
  const int column = threadIdx.x % bpc_warp, slot = threadIdx.x / bpc_warp;
  constexpr bpc_index blocks = (256 + bpc_warp - 1) / bpc_warp;
  const bpc_index c = block % blocks * bpc_warp + column;
  float total = 0;
  for (bpc_index round = 0; round < rows; round += 8 * bpc_column_slice) {
    const bpc_index start = round + slot * bpc_column_slice;
    const bpc_index end = rows - start < bpc_column_slice ? rows : start + bpc_column_slice;
    float sum = 0;
    for (bpc_index r = start; r < end && c < 256; ++r) {  // specs/digits_mlp.yaml:16
      const float d_linear1 = bpc_load(d_linear1_in, r * 256 + c);
      sum += float(d_linear1);
    }
    parts[slot][column] = sum;
    __syncthreads();
    if (slot == 0) {
      for (int s = 0; s < 8 && round + s * bpc_column_slice < rows; ++s) {
        total += parts[s][column];
      }
    }
    __syncthreads();
  }
  if (slot == 0 && c < 256) bpc_store(d_linear1_bias_cols_out, c, total);
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
//   4 blocks of 128 threads: a block makes 64 x 64 elements of acc, each thread 4 x 8 of them
extern "C" __global__ __launch_bounds__(128,1) void linear1_weight_gradient(
    const float* x_in,
    const float* d_linear1_in,
    float* d_linear1_weight_out,
    const int64_t* rows_in) {
  const int block = blockIdx.x;
  const bpc_index rows = bpc_index(*rows_in);

  // acc[r, c] for r < m = 64 and c < n = 256, each a sum of k = rows products. Arguments: left
  // factor and its strides by r and k, right factor and its strides by k and c, then m, n, k
  bpc_gemm<float>(
      block, x_in, 1, 64, d_linear1_in, 256, 1, 64, 256, rows,
      [&](bpc_index r, bpc_index c0, int count, const float* finished) {
#pragma unroll
        for (int q = 0; q < bpc_thread_n; ++q) {
          if (q < count) {
            const bpc_index c = c0 + q;
            const float acc = finished[q];
            const float d_linear1_weight = acc;  // linear1 weight gradient, specs/digits_mlp.yaml:16
            bpc_store(d_linear1_weight_out, r * 256 + c, d_linear1_weight);
          }
        }
      });
}

// ==== update ====================================================================================

// norm_chunks
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
//   7 blocks of 128 threads for all tensors together: each warp sums one chunk of 4096 elements, 4 chunks a
//     block
//   runs in every block of norm_and_control
static __device__ void norm_chunks(
    int block,
    const int64_t* table,
    int parts) {

  // a row of the table: [0] to [1] addresses of tensors, [2] elements of each ([3]: 1 if for each row of the
  //   batch), [4] first block
  constexpr int part_length = 5;
  const int64_t* part = bpc_find_part(table, parts, part_length, block);
  const float* grad_parameter_in = reinterpret_cast<const float*>(part[0]);
  double* squares_parameter_chunks_out = reinterpret_cast<double*>(part[1]);
  const bpc_index all = bpc_index(part[2]);
  const bpc_index chunk = bpc_index(block - part[4]) * (128 / bpc_warp) + threadIdx.x / bpc_warp;
  const bpc_index first = chunk * bpc_row_slice;  // a chunk has bpc_row_slice = 4096 elements
  if (first >= all) return;  // the whole warp: one warp reduces one chunk
  const bpc_index count = all - first < bpc_row_slice ? all - first : bpc_row_slice;
  // sum over the chunk, specs/digits_mlp.yaml:16
  const double squares_parameter_chunks = bpc_row_sum<double>(count, [&](bpc_index q) {
    const bpc_index c = first + q;
    const float grad_parameter = bpc_load(grad_parameter_in, c);
    // norm of linear1.weight and 5 more, specs/digits_mlp.yaml:16
    const double square_parameter = double(grad_parameter) * double(grad_parameter);
    return double(square_parameter);
  });
  if (threadIdx.x % bpc_warp == 0) bpc_store(squares_parameter_chunks_out, chunk, squares_parameter_chunks);
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
//   runs in one thread of the last block of norm_and_control
static __device__ void update_control(
    int block,
    const double* control_divisor_in,
    const double* control_weight_in,
    const double* control_scale_in,
    const double* squares_linear1_weight_chunks_in,
    const double* squares_linear1_bias_chunks_in,
    const double* squares_linear2_weight_chunks_in,
    const double* squares_linear2_bias_chunks_in,
    const double* squares_linear3_weight_chunks_in,
    const double* squares_linear3_bias_chunks_in,
    const double* control_loss_in,
    const int64_t* control_found_inf_in,
    const int64_t* control_late_in,
    const int64_t* control_updates_in,
    const double* control_base_lr_in,
    const double* control_warmup_in,
    const int64_t* control_window_in,
    double* grad_norm_linear1_weight_out,
    double* grad_norm_linear1_bias_out,
    double* grad_norm_linear2_weight_out,
    double* grad_norm_linear2_bias_out,
    double* grad_norm_linear3_weight_out,
    double* grad_norm_linear3_bias_out,
    double* norm_out,
    int64_t* nonfinite_out,
    float* factor_out,
    double* lr_out,
    int64_t* updates_out,
    int64_t* window_out,
    float* step_size_out,
    float* root_size_out) {

  if (threadIdx.x != 0) return;
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

// norm_and_control
//   every block runs norm_chunks; the block that finishes last goes on:
//   then   update_control (one thread)
//   of the last block and the first of 6 norm_chunks:
//   reads  grad.linear1.weight f32[64, 256], control.divisor f64[], control.weight f64[],
//          control.scale f64[], control.loss f64[], control.found_inf i64[], control.late i64[],
//          control.updates i64[], control.base_lr f64[], control.warmup f64[], control.window i64[]
//   writes squares.linear1.weight.chunks f64[4], grad_norm.linear1.weight f64[],
//          grad_norm.linear1.bias f64[], grad_norm.linear2.weight f64[],
//          grad_norm.linear2.bias f64[], grad_norm.linear3.weight f64[],
//          grad_norm.linear3.bias f64[], norm f64[], nonfinite i64[], factor f32[], lr f64[],
//          updates i64[], window i64[], step.size f32[], root.size f32[]
//   nodes  square.linear1.weight, squares.linear1.weight.chunks, unscale, squares.linear1.weight,
//          grad_norm.linear1.weight, squares.linear1.bias, grad_norm.linear1.bias,
//          squares.linear2.weight, grad_norm.linear2.weight, squares.linear2.bias,
//          grad_norm.linear2.bias, squares.linear3.weight, grad_norm.linear3.weight,
//          squares.linear3.bias, grad_norm.linear3.bias, squares_through.linear1.bias,
//          squares_through.linear2.weight, squares_through.linear2.bias,
//          squares_through.linear3.weight, squares_through.linear3.bias, norm, nonfinite.now,
//          nonfinite, held, factor.share, factor, update.number, lr, updates, window,
//          step.size.exact, step.size, root.size.exact, root.size
//   from specs/digits_mlp.yaml:16, :18, :21, :30
extern "C" __global__ __launch_bounds__(128,1) void norm_and_control(
    const int64_t* table,
    int parts,
    const double* control_divisor_in,
    const double* control_weight_in,
    const double* control_scale_in,
    const double* squares_linear1_weight_chunks_in,
    const double* squares_linear1_bias_chunks_in,
    const double* squares_linear2_weight_chunks_in,
    const double* squares_linear2_bias_chunks_in,
    const double* squares_linear3_weight_chunks_in,
    const double* squares_linear3_bias_chunks_in,
    const double* control_loss_in,
    const int64_t* control_found_inf_in,
    const int64_t* control_late_in,
    const int64_t* control_updates_in,
    const double* control_base_lr_in,
    const double* control_warmup_in,
    const int64_t* control_window_in,
    double* grad_norm_linear1_weight_out,
    double* grad_norm_linear1_bias_out,
    double* grad_norm_linear2_weight_out,
    double* grad_norm_linear2_bias_out,
    double* grad_norm_linear3_weight_out,
    double* grad_norm_linear3_bias_out,
    double* norm_out,
    int64_t* nonfinite_out,
    float* factor_out,
    double* lr_out,
    int64_t* updates_out,
    int64_t* window_out,
    float* step_size_out,
    float* root_size_out,
    unsigned* ticket) {
  norm_chunks(blockIdx.x, table, parts);
  if (!bpc_last_block(ticket)) return;
  update_control(0, control_divisor_in, control_weight_in, control_scale_in, squares_linear1_weight_chunks_in,
      squares_linear1_bias_chunks_in, squares_linear2_weight_chunks_in, squares_linear2_bias_chunks_in,
      squares_linear3_weight_chunks_in, squares_linear3_bias_chunks_in, control_loss_in, control_found_inf_in,
      control_late_in, control_updates_in, control_base_lr_in, control_warmup_in, control_window_in,
      grad_norm_linear1_weight_out, grad_norm_linear1_bias_out, grad_norm_linear2_weight_out,
      grad_norm_linear2_bias_out, grad_norm_linear3_weight_out, grad_norm_linear3_bias_out, norm_out,
      nonfinite_out, factor_out, lr_out, updates_out, window_out, step_size_out, root_size_out);
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
//   53 blocks of 256 threads for all tensors together: each thread takes 4 neighbouring elements
extern "C" __global__ __launch_bounds__(256,1) void adam(
    const int64_t* table,
    int parts,
    const int64_t* rows_in) {
  const int block = blockIdx.x;
  const bpc_index rows = bpc_index(*rows_in);

  // a row of the table: [0] to [10] addresses of tensors, [11] elements of each ([12]: 1 if for each row of
  //   the batch), [13] first block
  constexpr int part_length = 14;
  const int64_t* part = bpc_find_part(table, parts, part_length, block);
  const float* grad_parameter_in = reinterpret_cast<const float*>(part[0]);
  const float* factor_in = reinterpret_cast<const float*>(part[1]);
  const float* m_parameter_in = reinterpret_cast<const float*>(part[2]);
  const int64_t* nonfinite_in = reinterpret_cast<const int64_t*>(part[3]);
  const float* v_parameter_in = reinterpret_cast<const float*>(part[4]);
  const float* parameter_in = reinterpret_cast<const float*>(part[5]);
  const float* step_size_in = reinterpret_cast<const float*>(part[6]);
  const float* root_size_in = reinterpret_cast<const float*>(part[7]);
  float* next_m_parameter_out = reinterpret_cast<float*>(part[8]);
  float* next_v_parameter_out = reinterpret_cast<float*>(part[9]);
  float* next_parameter_out = reinterpret_cast<float*>(part[10]);
  const bpc_index all = bpc_index(part[11]) * (part[12] ? rows : 1);
  const bpc_index c0 = (bpc_index(block - part[13]) * 256 + threadIdx.x) * 4;
  if (c0 >= all) return;
  const float factor = bpc_load(factor_in, 0);
  const int64_t nonfinite = bpc_load(nonfinite_in, 0);
  const float step_size = bpc_load(step_size_in, 0);
  const float root_size = bpc_load(root_size_in, 0);
  const bpc_pack<float, 4> grad_parameter_pack = bpc_load_pack<4>(grad_parameter_in + c0, all - c0);
  const bpc_pack<float, 4> m_parameter_pack = bpc_load_pack<4>(m_parameter_in + c0, all - c0);
  const bpc_pack<float, 4> v_parameter_pack = bpc_load_pack<4>(v_parameter_in + c0, all - c0);
  const bpc_pack<float, 4> parameter_pack = bpc_load_pack<4>(parameter_in + c0, all - c0);
  bpc_pack<float, 4> next_m_parameter_out_pack;
  bpc_pack<float, 4> next_v_parameter_out_pack;
  bpc_pack<float, 4> next_parameter_out_pack;
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const bpc_index c = c0 + q;
    if (c < all) {
      const float grad_parameter = bpc_load(grad_parameter_pack.at, q);
      const float m_parameter = bpc_load(m_parameter_pack.at, q);
      const float v_parameter = bpc_load(v_parameter_pack.at, q);
      const float parameter = bpc_load(parameter_pack.at, q);
      // adam of linear1.weight and 5 more, specs/digits_mlp.yaml:16
      const float clipped_parameter = grad_parameter * factor;
      // adam of linear1.weight and 5 more, specs/digits_mlp.yaml:30
      const float next_m_parameter = (nonfinite ? m_parameter : 0.9f * m_parameter
          + 0.1f * clipped_parameter);
      // adam of linear1.weight and 5 more, specs/digits_mlp.yaml:30
      const float next_v_parameter = (nonfinite ? v_parameter : 0.999f * v_parameter
          + 0.001f * (clipped_parameter * clipped_parameter));
      // adam of linear1.weight and 5 more, specs/digits_mlp.yaml:30
      const float next_parameter = (nonfinite ? parameter : parameter
          - step_size * next_m_parameter / (bpc_sqrt(next_v_parameter) * root_size + 1e-08f));
      bpc_store(next_m_parameter_out_pack.at, q, next_m_parameter);
      bpc_store(next_v_parameter_out_pack.at, q, next_v_parameter);
      bpc_store(next_parameter_out_pack.at, q, next_parameter);
    }
  }
  bpc_store_pack<4>(next_m_parameter_out + c0, next_m_parameter_out_pack, all - c0);
  bpc_store_pack<4>(next_v_parameter_out + c0, next_v_parameter_out_pack, all - c0);
  bpc_store_pack<4>(next_parameter_out + c0, next_parameter_out_pack, all - c0);
}

// ==== evaluate ==================================================================================

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
//   2 blocks of 128 threads: a block makes 64 x 64 elements of acc, each thread 4 x 8 of them
extern "C" __global__ __launch_bounds__(128,1) void linear2_relu2(
    const float* relu1_in,
    const float* linear2_weight_in,
    const float* linear2_bias_in,
    float* relu2_out,
    const int64_t* rows_in) {
  const int block = blockIdx.x;
  const bpc_index rows = bpc_index(*rows_in);

  // acc[r, c] for r < m = rows and c < n = 128, each a sum of k = 256 products. Arguments: left
  // factor and its strides by r and k, right factor and its strides by k and c, then m, n, k
  bpc_gemm<float>(
      block, relu1_in, 256, 1, linear2_weight_in, 128, 1, rows, 128, 256,
      [&](bpc_index r, bpc_index c0, int count, const float* finished) {
#pragma unroll
        for (int q = 0; q < bpc_thread_n; ++q) {
          if (q < count) {
            const bpc_index c = c0 + q;
            const float acc = finished[q];
            const float linear2_bias = bpc_load(linear2_bias_in, c);
            const float linear2 = acc + linear2_bias;  // linear2, specs/digits_mlp.yaml:18
            const float relu2 = (linear2 <= 0.0f ? 0.0f : linear2);  // relu2, specs/digits_mlp.yaml:19
            bpc_store(relu2_out, r * 128 + c, relu2);
          }
        }
      });
}

// loss_cross_entropy_rows
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
//   16 blocks of 128 threads: each warp computes one row, 4 rows a block
//   runs in every block of loss_cross_entropy
static __device__ void loss_cross_entropy_rows(
    int block,
    const float* linear3_in,
    const int64_t* target_in,
    float* loss_sum_out,
    float* loss_picked_out,
    const int64_t* rows_in) {
  const bpc_index rows = bpc_index(*rows_in);

  const bpc_index r = bpc_index(block) * (128 / bpc_warp) + threadIdx.x / bpc_warp;
  if (r >= rows) return;  // the whole warp: one warp computes one row
  const int lane = threadIdx.x % bpc_warp;
  // the row is read once: each thread holds elements lane % 16 + 16 k of it, both halves the same
  float linear3_held[2] = {};
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const bpc_index c = lane % bpc_lanes + k * bpc_lanes;
    if (c < 10) {
      linear3_held[k] = bpc_load(linear3_in, r * 10 + c);
    }
  }
  const int64_t target = bpc_load(target_in, r);
  // max over the row, specs/digits_mlp.yaml:24
  const float loss_part2 = (bpc_held_max<float, 10>([&](bpc_index c, int k) {
    const float linear3 = linear3_held[k];
    return float(linear3);
  }));
  // sum over the row, specs/digits_mlp.yaml:24
  const float loss_sum = (bpc_held_sum<float, 10>([&](bpc_index c, int k) {
    const float linear3 = linear3_held[k];
    const float loss_exp = bpc_exp(linear3 - loss_part2);  // loss (cross entropy), specs/digits_mlp.yaml:24
    return float(loss_exp);
  }));
  // sum over the row, specs/digits_mlp.yaml:24
  const float loss_picked = (bpc_held_sum<float, 10>([&](bpc_index c, int k) {
    const float linear3 = linear3_held[k];
    const int64_t loss_column = c;
    // loss (cross entropy), specs/digits_mlp.yaml:24
    const float loss_chosen = (loss_column == target ? linear3 - loss_part2 : 0.0f);
    return float(loss_chosen);
  }));
  __syncwarp();  // all lanes hold what they need of the row: a result may lie where it lay
  if (lane == 0) {
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
//   runs in one warp of the last block of loss_cross_entropy
static __device__ void loss_cross_entropy_total(
    int block,
    const float* loss_sum_in,
    const float* loss_picked_in,
    double* loss_total_out,
    const int64_t* rows_in) {
  const bpc_index rows = bpc_index(*rows_in);

  const bpc_index r = bpc_index(block) * (128 / bpc_warp) + threadIdx.x / bpc_warp;
  if (r >= 1) return;  // the whole warp: one warp computes one row
  const int lane = threadIdx.x % bpc_warp;
  // sum over all c, specs/digits_mlp.yaml:24
  const double loss_total = (bpc_row_sum<double>(rows, [&](bpc_index c) {
    const float loss_sum = bpc_load(loss_sum_in, c);
    const float loss_picked = bpc_load(loss_picked_in, c);
    const float loss_part3 = bpc_log(loss_sum);  // loss (cross entropy), specs/digits_mlp.yaml:24
    const float loss_terms = loss_part3 - loss_picked;  // loss (cross entropy), specs/digits_mlp.yaml:24
    return double(loss_terms);
  }));
  __syncwarp();  // all lanes have read the row: a result may lie where it lay
  if (lane == 0) {
    bpc_store(loss_total_out, 0, loss_total);
  }
}

// loss_cross_entropy
//   every block runs loss_cross_entropy_rows; the block that finishes last goes on:
//   then   loss_cross_entropy_total (one warp), loss_cross_entropy_part1 (one thread)
//   reads  linear3 f32[batch, 10], target i64[batch]
//   writes loss.sum f32[batch], loss.picked f32[batch], loss.total f64[], loss_part1 = loss#1 f64[]
//   nodes  loss#2, loss.exp, loss.sum, loss.chosen, loss.picked, loss#3, loss.terms, loss.total,
//          loss#1
//   from specs/digits_mlp.yaml:24
extern "C" __global__ __launch_bounds__(128,1) void loss_cross_entropy(
    const float* linear3_in,
    const int64_t* target_in,
    float* loss_sum_out,
    float* loss_picked_out,
    const int64_t* rows_in,
    const float* loss_sum_in,
    const float* loss_picked_in,
    double* loss_total_out,
    double* loss_part1_out,
    unsigned* ticket) {
  loss_cross_entropy_rows(blockIdx.x, linear3_in, target_in, loss_sum_out, loss_picked_out, rows_in);
  if (!bpc_last_block(ticket)) return;
  loss_cross_entropy_total(0, loss_sum_in, loss_picked_in, loss_total_out, rows_in);
  __syncthreads();
  loss_cross_entropy_part1(0, loss_part1_out, rows_in);
}

