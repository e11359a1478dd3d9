// scheduler.h: who runs next, barriers of a block, and operations of a warp.
#pragma once
#include "fibers.h"

namespace sim {

// ---- choosing --------------------------------------------------------------------------------

inline void make_ready(int thread) {
  S.threads[thread].phase = Phase::ready;
  warp_of(thread).ready |= 1u << (thread % lanes);
  S.ready_warps |= 1u << (thread / lanes);
}

inline int choose_bit(u32 mask) {
  if (S.launch.order == IN_ORDER) return __builtin_ctz(mask);
  if (S.launch.order == REVERSE) return 31 - __builtin_clz(mask);
  for (u32 skip = random_bits() % u32(__builtin_popcount(mask)); skip; --skip) mask &= mask - 1;
  return __builtin_ctz(mask);
}

// A warp mostly goes on while it can, as on a device; a random order leaves it now and then.
inline int choose_warp() {
  const bool stay = S.launch.order != RANDOM || random_bits() % 8 != 0;
  return stay && S.warps[S.current_warp].ready ? S.current_warp : choose_bit(S.ready_warps);
}

// The next thread, taken from the ready ones; -1 if there is none.
inline int take_next() {
  if (!S.ready_warps) return -1;
  const int w = choose_warp(), lane = choose_bit(S.warps[w].ready);
  S.warps[w].ready &= ~(1u << lane);
  if (!S.warps[w].ready) S.ready_warps &= ~(1u << w);
  return w * lanes + lane;
}

inline void become(int thread) {
  const sim_triple size = sim_here.block_size;
  const u32 t = u32(thread);
  S.current = thread;
  S.current_warp = thread / lanes;
  sim_here.lane = t % lanes;
  if (size.y == 1 && size.z == 1) {
    sim_here.thread = {t, 0, 0};
  } else {
    sim_here.thread = {t % size.x, t / size.x % size.y, t / (size.x * size.y)};
  }
}

inline void report_deadlock() {
  int at_barrier = 0, in_warp = 0, left = 0, one = -1, other = -1;
  for (int t = 0; t < S.thread_count; ++t) {
    const Phase phase = S.threads[t].phase;
    at_barrier += phase == Phase::at_barrier;
    in_warp += phase == Phase::in_warp;
    left += phase == Phase::done;
    if (phase == Phase::at_barrier && one < 0) one = t;
    if (phase == Phase::in_warp && other < 0) other = t;
  }
  char text[192];
  snprintf(text, sizeof text,
           "no thread can go on: %d wait at a block barrier, %d in a warp operation, %d returned",
           at_barrier, in_warp, left);
  Report r = new_report(DEADLOCK, text);
  const u64 barrier_pc = one >= 0 ? relative(S.threads[one].barrier_pc) : 0;
  const u64 warp_pc = other >= 0 ? relative(warp_of(other).lane[other % lanes].pc) : 0;
  r.thread[0] = u32(other >= 0 ? other : one);
  r.pc[0] = other >= 0 ? warp_pc : barrier_pc;
  r.thread[1] = other >= 0 && one >= 0 ? u32(one) : ~0u;
  r.block[1] = r.block[0];
  r.pc[1] = other >= 0 ? barrier_pc : 0;
  file_report(r);
}

[[noreturn]] inline void stop_expired(u64 pc) {
  char text[192];
  snprintf(text, sizeof text, "the launch ran longer than %g s of processor time: an endless "
           "loop, or a block that waits for another", S.launch.seconds);
  file_report(new_report(BUDGET, text, pc));
  abort_launch();
}

// Gives the processor to the next thread. The caller has filed itself as ready, waiting or done.
inline void yield_thread(bool finished) {
  if (S.expired) stop_expired(0);
  const int from = S.current, to = take_next();
  if (to < 0) {
    if (!S.alive) leave();
    report_deadlock();
    abort_launch();
  }
  if (to == from && !finished) return;
  Thread& next = S.threads[to];
  S.switches++;
  if (next.phase == Phase::fresh) {
    next.stack = take_stack();
    next.stack_pointer = new_stack(next.stack);
  }
  next.phase = Phase::ready;
  if (finished) S.free_stacks.push_back(S.threads[from].stack);
  S.current_stack = next.stack;
  become(to);
  void* abandoned;
  sim_switch(finished ? &abandoned : &S.threads[from].stack_pointer, next.stack_pointer);
}

void complete_groups(int warp);
void release_barrier();

inline void finish_thread() {
  const int t = S.current;
  S.threads[t].phase = Phase::done;
  S.alive--;
  warp_of(t).exited |= 1u << (t % lanes);
  if (warp_of(t).waiting) complete_groups(t / lanes);
  if (S.waiting_at_barrier && S.waiting_at_barrier == S.alive) release_barrier();
}

// Threads that never wait run one after the other on one stack, without a switch.
void run_threads() {
  for (;;) {
    S.launch.kernel(S.launch.arguments);
    finish_thread();
    const int next = take_next();
    if (next >= 0 && S.threads[next].phase == Phase::fresh && !S.expired) {
      S.threads[next].stack = S.current_stack;
      S.threads[next].phase = Phase::ready;
      become(next);
      continue;
    }
    if (next >= 0) {
      const Phase phase = S.threads[next].phase;
      make_ready(next);
      S.threads[next].phase = phase;
    }
    yield_thread(true);
  }
}

// ---- the barrier of a block ------------------------------------------------------------------

inline void check_barrier(int first) {
  const Thread& a = S.threads[first];
  for (int t = first + 1; t < S.thread_count; ++t) {
    const Thread& b = S.threads[t];
    if (b.phase != Phase::at_barrier) continue;
    const bool other_site = b.barrier_site != a.barrier_site;
    if (!other_site && (!(a.barrier_site & SIM_LINE) || b.barrier_pc == a.barrier_pc)) continue;
    Report r = new_report(other_site ? DIVERGENT_BARRIER : TWO_ADDRESSES,
                          "threads of one block met at different barriers", a.barrier_pc);
    r.thread[0] = u32(first);
    r.thread[1] = u32(t);
    r.block[1] = r.block[0];
    r.pc[1] = relative(b.barrier_pc);
    file_report(r);
    return;
  }
  if (S.alive < S.thread_count) {
    char text[192];
    snprintf(text, sizeof text, "barrier reached by %d of %d threads, the others had returned",
             S.alive, S.thread_count);
    Report r = new_report(DIVERGENT_BARRIER, text, a.barrier_pc);
    r.thread[0] = u32(first);
    file_report(r);
  }
}

// A barrier orders all earlier accesses of the block before all later ones.
inline void order_block() {
  S.block_base = ++S.clock;
  for (int w = 0; w < S.warp_count; ++w) S.warps[w].base = S.clock;
  for (int t = 0; t < S.thread_count; ++t) S.threads[t].stamp = S.clock;
}

void release_barrier() {
  int first = -1, count = 0;
  for (int t = S.thread_count - 1; t >= 0; --t) {
    if (S.threads[t].phase != Phase::at_barrier) continue;
    first = t;
    count += S.threads[t].predicate != 0;
  }
  const int vote = S.threads[first].vote;
  S.vote_result = vote == SIM_COUNT ? count : vote == SIM_AND ? count == S.alive : count != 0;
  check_barrier(first);
  order_block();
  S.waiting_at_barrier = 0;
  for (int t = 0; t < S.thread_count; ++t) {
    if (S.threads[t].phase == Phase::at_barrier) make_ready(t);
  }
}

// ---- warp operations -------------------------------------------------------------------------

inline int source_lane(const Lane& lane, int index) {
  const int first = index & ~(lane.width - 1), last = first + lane.width - 1;
  switch (lane.operation) {
    case SIM_SHUFFLE: return first | (lane.argument & (lane.width - 1));
    case SIM_SHUFFLE_UP: return index - lane.argument < first ? index : index - lane.argument;
    case SIM_SHUFFLE_DOWN: return index + lane.argument > last ? index : index + lane.argument;
    default: return (index ^ lane.argument) > last ? index : index ^ lane.argument;
  }
}

inline u64 combine(int operation, u64 a, u64 b) {
  const int32_t x = int32_t(a), y = int32_t(b);
  switch (operation) {
    case SIM_REDUCE_ADD: return u32(a + b);
    case SIM_REDUCE_MIN_SIGNED: return u32(std::min(x, y));
    case SIM_REDUCE_MAX_SIGNED: return u32(std::max(x, y));
    case SIM_REDUCE_MIN: return std::min(a, b);
    case SIM_REDUCE_MAX: return std::max(a, b);
    case SIM_REDUCE_AND: case SIM_ALL: return a & b;
    case SIM_REDUCE_XOR: return a ^ b;
    default: return a | b;
  }
}

inline u64 lane_result(int w, u32 group, int index) {
  Warp& warp = S.warps[w];
  const Lane& lane = warp.lane[index];
  if (lane.operation == SIM_SYNCWARP) return 0;
  if (lane.operation <= SIM_SHUFFLE_XOR) {
    const int source = source_lane(lane, index);
    if (group >> source & 1) return warp.lane[source].value;
    Report r = new_report(UNDEFINED, "shuffle from a lane outside its mask, or one that returned",
                          lane.pc);
    r.thread[0] = u32(w * lanes + index);
    r.thread[1] = u32(w * lanes + source);
    r.block[1] = r.block[0];
    file_report(r);
    return ~u64(0);
  }
  u64 total = 0;
  bool first = true;
  for (u32 rest = group; rest; rest &= rest - 1) {
    const int i = __builtin_ctz(rest);
    u64 value = warp.lane[i].value;
    if (lane.operation == SIM_BALLOT) value = u64(value != 0) << i;
    total = first ? value : combine(lane.operation, total, value);
    first = false;
  }
  return total;
}

// __syncwarp orders the memory accesses of its lanes. Shuffles and votes order nothing.
inline void order_lanes(int w, u32 group) {
  Warp& warp = S.warps[w];
  ++S.clock;
  if (group == (warp.all & ~warp.exited)) {
    warp.base = S.clock;
  } else {
    if (!warp.known) warp.known = static_cast<u32(*)[lanes]>(calloc(lanes * lanes, sizeof(u32)));
    u32 joint[lanes] = {};
    for (u32 rest = group; rest; rest &= rest - 1) {
      const u32* known = warp.known[__builtin_ctz(rest)];
      for (int i = 0; i < lanes; ++i) joint[i] = std::max(joint[i], known[i]);
    }
    for (u32 rest = group; rest; rest &= rest - 1) joint[__builtin_ctz(rest)] = S.clock;
    for (u32 rest = group; rest; rest &= rest - 1) {
      memcpy(warp.known[__builtin_ctz(rest)], joint, sizeof joint);
    }
  }
  for (u32 rest = group; rest; rest &= rest - 1) {
    S.threads[w * lanes + __builtin_ctz(rest)].stamp = S.clock;
  }
}

inline Report warp_report(int w, int index, const char* message) {
  Report r = new_report(DIVERGENT_BARRIER, message, S.warps[w].lane[index].pc);
  r.thread[0] = u32(w * lanes + index);
  return r;
}

// The waiting lanes whose mask is `mask`.
inline u32 waiting_with(const Warp& warp, u32 mask) {
  u32 found = 0;
  for (u32 rest = warp.waiting & mask; rest; rest &= rest - 1) {
    const int i = __builtin_ctz(rest);
    found |= u32(warp.lane[i].mask == mask) << i;
  }
  return found;
}

// Every lane of the leader's mask waits with that mask (or has returned, which is reported).
inline void complete_group(int w, int leader, u32 group) {
  Warp& warp = S.warps[w];
  const Lane& lane = warp.lane[leader];
  for (u32 rest = group; rest; rest &= rest - 1) {
    const int i = __builtin_ctz(rest);
    if (warp.lane[i].operation == lane.operation) continue;
    Report r = warp_report(w, leader, "lanes of one mask met at different warp operations");
    r.thread[1] = u32(w * lanes + i);
    r.block[1] = r.block[0];
    r.pc[1] = relative(warp.lane[i].pc);
    file_report(r);
    abort_launch();
  }
  if (lane.mask & warp.exited & warp.all) {
    file_report(warp_report(w, leader, "warp operation names lanes that have returned"));
  }
  for (u32 rest = group; rest; rest &= rest - 1) {
    const int i = __builtin_ctz(rest);
    warp.lane[i].result = lane_result(w, group, i);
  }
  if (lane.operation == SIM_SYNCWARP) order_lanes(w, group);
  warp.waiting &= ~group;
  for (u32 rest = group; rest; rest &= rest - 1) make_ready(w * lanes + __builtin_ctz(rest));
}

void complete_groups(int w) {
  Warp& warp = S.warps[w];
  for (u32 todo = warp.waiting; todo; todo &= todo - 1) {
    const int leader = __builtin_ctz(todo);
    if (!(warp.waiting >> leader & 1)) continue;
    const u32 mask = warp.lane[leader].mask, group = mask & warp.all & ~warp.exited;
    // A lane may first have to meet others under another mask: then this group goes on waiting.
    if (waiting_with(warp, mask) == group) complete_group(w, leader, group);
  }
}
}  // namespace sim

using namespace sim;
extern "C" {
sim_place sim_here;

int sim_barrier(int vote, int predicate, unsigned site) {
  Thread& t = me();
  t.phase = Phase::at_barrier;
  t.barrier_pc = SIM_CALLER;
  t.barrier_site = site;
  t.vote = vote;
  t.predicate = predicate;
  if (++S.waiting_at_barrier == S.alive) release_barrier();
  yield_thread(false);
  return S.vote_result;
}

uint64_t sim_warp(int operation, unsigned mask, uint64_t value, int argument, int width) {
  const int w = S.current / lanes, index = S.current % lanes;
  Warp& warp = S.warps[w];
  warp.lane[index] = {mask, operation, argument, width, value, 0, SIM_CALLER};
  if (!(mask >> index & 1)) {
    file_report(warp_report(w, index, "the calling lane is not in its own mask"));
    abort_launch();
  }
  warp.waiting |= 1u << index;
  me().phase = Phase::in_warp;
  const u32 group = mask & warp.all & ~warp.exited;
  if ((warp.waiting & group) == group) complete_groups(w);
  yield_thread(false);
  return warp.lane[index].result;
}

void sim_trap(const char* message) {
  file_report(new_report(TRAP, message, SIM_CALLER));
  abort_launch();
}

float sim_perturb(float value, float ulps) {
  const int most = int(ulps * S.launch.adversarial);
  if (most < 1 || !isfinite(value) || value == 0) return value;
  u32 bits;
  memcpy(&bits, &value, sizeof bits);
  bits += u32(int(random_bits() % u32(2 * most + 1)) - most);
  float moved;
  memcpy(&moved, &bits, sizeof moved);
  return isfinite(moved) ? moved : value;
}
}
