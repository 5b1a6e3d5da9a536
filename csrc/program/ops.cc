#include "program/ops.h"

namespace headrace {
namespace {

struct Call {
  const KernelTable& table;
  OpContext& context;
  void operator()(const EmbedArgs& args) const { table.embed(args, context); }
  void operator()(const RmsNormArgs& args) const { table.rms_norm(args, context); }
  void operator()(const RmsNormAddArgs& args) const { table.rms_norm_add(args, context); }
  void operator()(const ConvertArgs& args) const { table.convert(args, context); }
  void operator()(const GatedActivationArgs& args) const { table.gated_activation(args, context); }
  void operator()(const GatherOutputsArgs& args) const { table.gather_outputs(args, context); }
  void operator()(const SoftCapArgs& args) const { table.soft_cap(args, context); }
  void operator()(const LinearArgs& args) const { table.linear(args, context); }
  void operator()(const RopeTableArgs& args) const { table.rope_table(args, context); }
  void operator()(const RotateAndStoreArgs& args) const { table.rotate_and_store(args, context); }
  void operator()(const AttentionArgs& args) const { table.attention(args, context); }
  void operator()(const LayerNormArgs& args) const { table.layer_norm(args, context); }
  void operator()(const AddPositionsArgs& args) const { table.add_positions(args, context); }
  void operator()(const ActivationArgs& args) const { table.activation(args, context); }
  void operator()(const AdaptArgs& args) const { table.adapt(args, context); }
};

// Calls fn(buffer) for every buffer of an op, by the names that arguments have.
template <typename Args, typename Fn>
void for_each_buffer(Args& args, Fn fn) {
  if constexpr (requires { args.x; }) fn(args.x);
  if constexpr (requires { args.out; }) fn(args.out);
  if constexpr (requires { args.qkv; }) fn(args.qkv);
  if constexpr (requires { args.rope; }) fn(args.rope);
}

}  // namespace

void call(const KernelTable& kernels, const OpArgs& args, OpContext& context) {
  std::visit(Call{kernels, context}, args);
}

bool is_row_op(const OpArgs& args) {
  if (std::holds_alternative<AttentionArgs>(args)) return false;
  bool is_per_token = true;
  std::visit(
      [&](const auto& op) {
        for_each_buffer(op, [&](const Buffer& buffer) {
          is_per_token = is_per_token && buffer.rows == Rows::kTokens;
        });
      },
      args);
  return is_per_token;
}

OpArgs from_token(OpArgs args, int64_t first) {
  std::visit(
      [&](auto& op) {
        for_each_buffer(op, [&](Buffer& buffer) { buffer.data += first * buffer.stride; });
      },
      args);
  return args;
}

}  // namespace headrace
