// attention: see kernels/ops.py for its meaning and the order of its sums.
#include "attention/chunk.h"
#include "attention/workspace.h"
#include "base/isa.h"
#include "base/kernels.h"
#include "base/quantize.h"

namespace headrace::avx512_bf16 {

// The same source, compiled once more for machines that multiply pairs of bf16.
void attention_bf16(const AttentionArgs& args, OpContext& context);

}  // namespace headrace::avx512_bf16

namespace headrace::HR_ISA {
namespace {

// Below this many multiplications waking other threads costs more than it saves.
constexpr int64_t kInlineProducts = 1 << 17;
// Long sequences are split over chunks when there are fewer tasks than this per thread ...
constexpr int64_t kTasksPerThread = 8;
// ... and tasks are of all KV heads when there are as many of those per thread.
constexpr int64_t kWholeTasksPerThread = 4;
// ... and the chunks' results take no more than this.
constexpr int64_t kMaxPartialFloats = 1 << 20;

HR_INLINE void write_mass(const Op& op, const Task& task, int kv_head, const Workspace& w) {
  const int heads = op.geometry.heads_per_kv, block_size = op.kv.layout().block_size;
  for (int t = 0; t < task.num_tokens; ++t) {
    float* out = op.args.mass.row(task.first_token + t) + kv_head * op.num_blocks;
    for (int64_t b = 0; b < op.num_blocks && !op.args.adds_mass; ++b) out[b] = 0.0f;
    for (int row = t * heads; row < (t + 1) * heads; ++row) {
      const float* sums = w.block_sums + row * op.num_blocks;
      const float* maxima = w.chunk_maxima + row * op.num_chunks;
      for (int64_t b = 0; b < op.num_blocks; ++b) {
        if (sums[b] == 0.0f) continue;
        float factor[kLanes];
        store(factor, power_of_two_below(
                          splat(maxima[b * block_size / kAttentionChunk] - w.state_max[row])));
        out[b] += sums[b] * factor[0] / w.state_sum[row];
      }
    }
  }
}

// Divides by the sums and writes the task's heads, in `out`'s dtype.
HR_INLINE void write_rows(const Op& op, const Task& task, int kv_head, const Buffer& out,
                          const Workspace& w) {
  const Geometry& g = op.geometry;
  for (int row = 0; row < task.num_tokens * g.heads_per_kv; ++row) {
    float* values = w.state_values + int64_t{row} * g.padded;
    const bool is_empty = w.state_sum[row] < 0.0f;  // it saw no key at all
    const Vec factor = splat(is_empty ? 0.0f : 1.0f / w.state_sum[row]);
    for (int i = 0; i < g.padded; i += kLanes) {
      store(values + i, is_empty ? zero() : load(values + i) * factor);
    }
    const int64_t column = int64_t{kv_head * g.heads_per_kv + row % g.heads_per_kv} * g.size;
    std::byte* target = out.row<std::byte>(task.first_token + row / g.heads_per_kv);
    switch (out.dtype) {
      case DType::kF32:
        target += column * 4;
        break;
      case DType::kQ8:
        target += column / kGroup * sizeof(Q8Group);
        break;
      default:
        target += column * 2;
    }
    store_row(values, g.size, out.dtype, target);
  }
}

// What decides how the work is shared out.
struct Load {
  int64_t products = 0;  // rows * keys * D, an upper bound
  int64_t num_tasks = 0;
  int64_t max_chunks = 0;  // of any task, an upper bound
  int64_t max_rows = 0;    // of any task
};

HR_INLINE Load measure(const Op& op, const StepInputs& inputs) {
  const Geometry& g = op.geometry;
  Load load;
  for (int s = 0; s < inputs.num_sequences; ++s) {
    const int64_t count = inputs.query_starts[s + 1] - inputs.query_starts[s];
    if (count == 0) continue;
    int64_t keys = inputs.key_starts[s] + count;
    const int64_t in_window = 2 * int64_t{op.args.window} + count;  // both sides, if not causal
    if (op.args.window > 0 && in_window < keys) keys = in_window;
    load.products += count * keys * g.num_heads * g.size;
    load.num_tasks += (count + g.tokens_per_task - 1) / g.tokens_per_task * g.num_kv_heads;
    const int64_t chunks = keys / kAttentionChunk + 2;  // a window may touch both ends
    load.max_chunks = chunks > load.max_chunks ? chunks : load.max_chunks;
    const int64_t tokens = count < g.tokens_per_task ? count : g.tokens_per_task;
    const int64_t rows = tokens * g.heads_per_kv;
    load.max_rows = rows > load.max_rows ? rows : load.max_rows;
  }
  return load;
}

// What the tasks of one op share.
struct Shared {
  int64_t* starts;  // [S + 1], see number_tasks
  float* workspaces;
  int64_t stride;  // floats of one workspace
  float* partial;  // results of (task, chunk), when split
};

// Floats that one row's result of a chunk takes: values, m, l.
HR_INLINE int64_t partial_row(const Geometry& g) { return g.padded + 16; }

// The chunks of a task's keys, [begin, end).
struct ChunkRange {
  int64_t begin, end;
};

HR_INLINE ChunkRange chunks_of(const Op& op, const Task& task) {
  const KeyRange visible = visible_keys(op.args, task);
  return {visible.begin / kAttentionChunk, (visible.end + kAttentionChunk - 1) / kAttentionChunk};
}

// Each task by one thread.
HR_INLINE void run_whole(const Op& op, OpContext& context, const Shared& shared, const Load& load,
                         const Buffer& out) {
  const int group = op.kv.group_of(op.args.layer);
  const auto run = [&](int64_t number, int thread) {
    const Task task = task_at(number, context.inputs, op.geometry, shared.starts, group);
    const ChunkRange chunks = chunks_of(op, task);
    const Workspace w = workspace_at(op, shared.workspaces + thread * shared.stride);
    const int64_t rows = int64_t{task.num_tokens} * op.geometry.heads_per_kv;
    for (int head = task.first_head; head < task.last_head; ++head) {
      for (int64_t i = 0; i < rows * op.num_blocks; ++i) w.block_sums[i] = 0.0f;
      run_chunks(op, task, head, chunks.begin, chunks.end, w);
      write_rows(op, task, head, out, w);
      if (op.num_blocks > 0) write_mass(op, task, head, w);
    }
  };
  if (load.products <= kInlineProducts) {
    for (int64_t number = 0; number < load.num_tasks; ++number) run(number, 0);
  } else {
    context.pool.parallel_for(load.num_tasks, run);
  }
}

HR_INLINE void keep_partial(const Op& op, const Task& task, const Workspace& w, float* kept) {
  const int padded = op.geometry.padded;
  for (int row = 0; row < task.num_tokens * op.geometry.heads_per_kv; ++row) {
    kept[padded] = w.state_max[row];
    kept[padded + 1] = w.state_sum[row];
    if (w.state_sum[row] >= 0.0f || w.state_sum[row] != w.state_sum[row]) {
      const float* values = w.state_values + int64_t{row} * padded;
      for (int i = 0; i < padded; i += kLanes) store(kept + i, load(values + i));
    }
    kept += partial_row(op.geometry);
  }
}

// Merges the kept results of a task's chunks, in their order, and writes its rows.
HR_INLINE void merge_partials(const Op& op, const Task& task, const float* kept,
                              int64_t item_floats, const Buffer& out, const Workspace& w) {
  const int padded = op.geometry.padded;
  const ChunkRange chunks = chunks_of(op, task);
  for (int row = 0; row < task.num_tokens * op.geometry.heads_per_kv; ++row) {
    w.state_sum[row] = -1.0f;
    const RowState state{w.state_max + row, w.state_sum + row,
                         w.state_values + int64_t{row} * padded};
    const float* part = kept + row * partial_row(op.geometry);
    for (int64_t c = chunks.begin; c < chunks.end; ++c, part += item_floats) {
      if (part[padded + 1] < 0.0f) continue;
      merge_chunk(state, part[padded], part[padded + 1], part, padded);
    }
  }
  write_rows(op, task, task.first_head, out, w);
}

// Few tasks with many keys: every chunk of every task is an item of its own, then each task merges
// its chunks. The sums are those of run_whole.
HR_INLINE void run_split(const Op& op, OpContext& context, const Shared& shared, const Load& load,
                         const Buffer& out) {
  const int group = op.kv.group_of(op.args.layer);
  const int64_t item_floats = load.max_rows * partial_row(op.geometry);
  context.pool.parallel_for(load.num_tasks * load.max_chunks, [&](int64_t item, int thread) {
    const int64_t number = item / load.max_chunks;
    const Task task = task_at(number, context.inputs, op.geometry, shared.starts, group);
    const ChunkRange chunks = chunks_of(op, task);
    const int64_t chunk = chunks.begin + item % load.max_chunks;
    if (chunk >= chunks.end) return;
    const Workspace w = workspace_at(op, shared.workspaces + thread * shared.stride);
    run_chunks(op, task, task.first_head, chunk, chunk + 1, w);
    keep_partial(op, task, w, shared.partial + item * item_floats);
  });
  const Workspace w = workspace_at(op, shared.workspaces);
  for (int64_t number = 0; number < load.num_tasks; ++number) {
    const Task task = task_at(number, context.inputs, op.geometry, shared.starts, group);
    const float* kept = shared.partial + number * load.max_chunks * item_floats;
    merge_partials(op, task, kept, item_floats, out, w);
  }
}

// Floats for the chunks' results of every task, or 0 if splitting over chunks is not worth it.
HR_INLINE int64_t partial_floats(const Op& op, const Load& load, int num_threads) {
  if (op.num_blocks > 0 || num_threads == 1 || load.products <= kInlineProducts) return 0;
  if (op.geometry.head_tasks == 1 && op.geometry.num_kv_heads > 1) return 0;
  if (load.num_tasks >= kTasksPerThread * num_threads || load.max_chunks <= 2) return 0;
  const int64_t floats =
      load.num_tasks * load.max_chunks * load.max_rows * partial_row(op.geometry);
  return floats <= kMaxPartialFloats ? floats : 0;
}

HR_INLINE Op op_of(const AttentionArgs& args, const KVCache& kv) {
  const Geometry geometry = geometry_of(args, kv.layout());
  const int64_t num_blocks =
      args.mass.data == nullptr ? 0 : args.mass.width / geometry.num_kv_heads;
  const int64_t num_chunks =
      (num_blocks * kv.layout().block_size + kAttentionChunk - 1) / kAttentionChunk;
  return {args, kv, geometry, {args.scale, args.soft_cap}, num_blocks, num_chunks};
}

}  // namespace

#if defined(__AVX512BF16__)
void attention_bf16(const AttentionArgs& args, OpContext& context) {
#else
void attention(const AttentionArgs& args, OpContext& context) {
#if defined(HR_ISA_AVX512)
  static const bool has_dot = detect_cpu().has_avx512_bf16;  // cpuid is slow in virtual machines
  if (has_dot && context.kv.layout().dtype == DType::kBF16) {
    return avx512_bf16::attention_bf16(args, context);
  }
#endif
#endif
  const StepInputs& inputs = context.inputs;
  Op op = op_of(args, context.kv);
  Load load = measure(op, inputs);
  const int num_threads = context.pool.num_threads();
  if (load.num_tasks >= kWholeTasksPerThread * num_threads * op.geometry.num_kv_heads) {
    op.geometry.head_tasks = 1;
    load.num_tasks /= op.geometry.num_kv_heads;
  }
  // A head that ends inside a group of 32 cannot be quantised alone: rows are kept as float32
  // first.
  const bool is_quantised_after = args.out.dtype == DType::kQ8 && op.geometry.size % kGroup != 0;
  const int64_t row_floats = is_quantised_after ? aligned(args.out.width) : 0;
  const int64_t starts_floats = aligned(2 * (int64_t{inputs.num_sequences} + 1));
  const int64_t stride = workspace_floats(op);
  const int64_t partial = partial_floats(op, load, num_threads);
  float* memory = reinterpret_cast<float*>(context.scratch(
      sizeof(float) * static_cast<size_t>(starts_floats + num_threads * stride + partial +
                                          inputs.num_tokens * row_floats)));
  const Shared shared{reinterpret_cast<int64_t*>(memory), memory + starts_floats, stride,
                      memory + starts_floats + num_threads * stride};
  number_tasks(inputs, op.geometry, shared.starts);
  Buffer out = args.out;
  if (is_quantised_after) {
    out = {reinterpret_cast<std::byte*>(shared.partial + partial),
           row_floats * static_cast<int64_t>(sizeof(float)), args.out.width, DType::kF32,
           args.out.rows};
  }
  if (partial > 0) {
    run_split(op, context, shared, load, out);
  } else {
    run_whole(op, context, shared, load, out);
  }
  for (int64_t t = 0; t < inputs.num_tokens && is_quantised_after; ++t) {
    store_row(out.row(t), args.out.width, DType::kQ8, args.out.row<std::byte>(t));
  }
}

}  // namespace headrace::HR_ISA
