// The ops of a program as values: their arguments, names, and what the program may do with them.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <variant>

#include "base/kernels.h"

namespace headrace {

using OpArgs =
    std::variant<EmbedArgs, RmsNormArgs, RmsNormAddArgs, ConvertArgs, GatedActivationArgs,
                 GatherOutputsArgs, SoftCapArgs, LinearArgs, RopeTableArgs, RotateAndStoreArgs,
                 AttentionArgs, LayerNormArgs, AddPositionsArgs, ActivationArgs, AdaptArgs>;

// Names of kernels/ops.py, in the order of OpArgs.
inline constexpr std::array<std::string_view, 15> kOpNames = {
    "embed",          "rms_norm",   "rms_norm_add",  "convert",    "gated_activation",
    "gather_outputs", "soft_cap",   "linear",        "rope_table", "rotate_and_store",
    "attention",      "layer_norm", "add_positions", "activation", "adapt"};
static_assert(kOpNames.size() == std::variant_size_v<OpArgs>);

// Calls the kernel of an op.
void call(const KernelTable& kernels, const OpArgs& args, OpContext& context);

// Whether row t of what the op writes depends, of the buffers, on row t of what it reads only, all
// of them with one row per token: any rows may then be computed apart from the others.
bool is_row_op(const OpArgs& args);

// The same op with buffers that start at token `first`. For row ops.
OpArgs from_token(OpArgs args, int64_t first);

}  // namespace headrace
