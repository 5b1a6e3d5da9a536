// Collects the kernels of one instruction set; compiled once per set.
#include "base/kernels.h"

namespace headrace::HR_ISA {

void embed(const EmbedArgs&, OpContext&);
void rms_norm(const RmsNormArgs&, OpContext&);
void rms_norm_add(const RmsNormAddArgs&, OpContext&);
void layer_norm(const LayerNormArgs&, OpContext&);
void add_positions(const AddPositionsArgs&, OpContext&);
void convert(const ConvertArgs&, OpContext&);
void activation(const ActivationArgs&, OpContext&);
void gated_activation(const GatedActivationArgs&, OpContext&);
void gather_outputs(const GatherOutputsArgs&, OpContext&);
void soft_cap(const SoftCapArgs&, OpContext&);
void linear(const LinearArgs&, OpContext&);
void adapt(const AdaptArgs&, OpContext&);
void rope_table(const RopeTableArgs&, OpContext&);
void rotate_and_store(const RotateAndStoreArgs&, OpContext&);
void attention(const AttentionArgs&, OpContext&);
void sample(const SampleArgs&, ThreadPool&, Mapping& scratch);
void score(const SampleArgs&, ThreadPool&, Mapping& scratch);

const KernelTable kKernels = {
    .embed = embed,
    .rms_norm = rms_norm,
    .rms_norm_add = rms_norm_add,
    .layer_norm = layer_norm,
    .add_positions = add_positions,
    .convert = convert,
    .activation = activation,
    .gated_activation = gated_activation,
    .gather_outputs = gather_outputs,
    .soft_cap = soft_cap,
    .linear = linear,
    .adapt = adapt,
    .rope_table = rope_table,
    .rotate_and_store = rotate_and_store,
    .attention = attention,
    .sample = sample,
    .score = score,
};

}  // namespace headrace::HR_ISA
