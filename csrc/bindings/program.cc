#include "program/program.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"

namespace headrace {
namespace {

using Owners = std::vector<std::shared_ptr<const void>>;
using VectorPtr = std::shared_ptr<Vector>;
using WeightPtr = std::shared_ptr<Weight>;

const float* data_of(const std::optional<VectorPtr>& vector) {
  return vector.has_value() ? (*vector)->data() : nullptr;
}

StepArrays::View view(const Array1<int32_t>& array) {
  return {array.data(), static_cast<int64_t>(array.size())};
}

// The arrays of a step, bound once: their contents may change between two runs, their lengths not.
// What they hold is checked at every run.
class BoundStep {
 public:
  BoundStep(std::shared_ptr<Program> program, Array1<int32_t> token_ids, Array1<int32_t> positions,
            Array1<int32_t> query_starts, Array1<int32_t> key_starts, Array1<int32_t> slots,
            std::vector<Array2<int32_t>> block_tables, Array1<int32_t> output_rows,
            std::optional<Array1<int32_t>> adapters, std::optional<Array2<float>> embeddings,
            nb::object result)
      : program_(std::move(program)),
        owners_{std::move(token_ids),  std::move(positions), std::move(query_starts),
                std::move(key_starts), std::move(slots),     std::move(output_rows)},
        tables_(std::move(block_tables)),
        adapters_(std::move(adapters)),
        embeddings_(std::move(embeddings)),
        result_(std::move(result)) {
    arrays_.token_ids = view(owners_[0]);
    arrays_.positions = view(owners_[1]);
    arrays_.query_starts = view(owners_[2]);
    arrays_.key_starts = view(owners_[3]);
    arrays_.slots = view(owners_[4]);
    arrays_.output_rows = view(owners_[5]);
    if (adapters_.has_value()) arrays_.adapters = view(*adapters_);
    if (embeddings_.has_value()) {
      arrays_.embeddings = {embeddings_->data(), static_cast<int64_t>(embeddings_->shape(0)),
                            static_cast<int64_t>(embeddings_->shape(1))};
    }
    for (const Array2<int32_t>& table : tables_) {
      arrays_.block_tables.push_back({table.data(), static_cast<int64_t>(table.shape(0)),
                                      static_cast<int64_t>(table.shape(1))});
    }
  }

  // Gives `result`: the view of what the run wrote, where the caller wants one.
  nb::object run() const {
    {
      const nb::gil_scoped_release release;
      program_->run(arrays_);
    }
    return result_;
  }

 private:
  std::shared_ptr<Program> program_;
  std::array<Array1<int32_t>, 6> owners_;
  std::vector<Array2<int32_t>> tables_;
  std::optional<Array1<int32_t>> adapters_;
  std::optional<Array2<float>> embeddings_;
  nb::object result_;
  StepArrays arrays_;
};

// A view of the arena: rows of T, valid as long as the program.
template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<2>> rows_of(nb::handle program, const Buffer& buffer,
                                               int64_t num_rows, int64_t width) {
  if (num_rows < 0 || num_rows > nb::cast<Program&>(program).max_rows(buffer.rows)) {
    throw std::invalid_argument("The buffer has fewer rows.");
  }
  return nb::ndarray<nb::numpy, T, nb::ndim<2>>(
      buffer.data, {static_cast<size_t>(num_rows), static_cast<size_t>(width)}, program,
      {buffer.stride / static_cast<int64_t>(sizeof(T)), 1});
}

nb::ndarray<nb::numpy, float, nb::ndim<2>> read(nb::handle program, const Buffer& buffer,
                                                int64_t num_rows) {
  if (buffer.dtype != DType::kF32)
    throw std::invalid_argument("Only float32 buffers are read as floats.");
  return rows_of<float>(program, buffer, num_rows, buffer.width);
}

nb::ndarray<nb::numpy, uint8_t, nb::ndim<2>> read_bytes(nb::handle program, const Buffer& buffer,
                                                        int64_t num_rows) {
  return rows_of<uint8_t>(program, buffer, num_rows, buffer.stride);
}

void write(Program& program, const Buffer& buffer, const Array2<float>& rows) {
  program.write(buffer, rows.data(), static_cast<int64_t>(rows.shape(0)),
                static_cast<int64_t>(rows.shape(1)));
}

nb::dict times(const Program& program) {
  nb::dict result;
  for (size_t i = 0; i < kOpNames.size(); ++i) {
    const OpTime& time = program.times()[i];
    if (time.calls == 0) continue;
    result[nb::str(kOpNames[i].data(), kOpNames[i].size())] =
        nb::make_tuple(time.calls, time.nanoseconds);
  }
  return result;
}

void check_layer(const KVCache& cache, int layer) {
  if (layer < 0 || layer >= cache.layout().num_layers) {
    throw std::invalid_argument("The KV cache has no layer " + std::to_string(layer) + ".");
  }
}

int64_t check_block(const KVCache& cache, int group, int64_t block) {
  const auto& blocks = cache.layout().num_blocks;
  if (group < 0 || static_cast<size_t>(group) >= blocks.size() || block < 0 ||
      block >= blocks[static_cast<size_t>(group)]) {
    throw std::invalid_argument("The KV cache has no such block.");
  }
  return block;
}

using Blob = nb::ndarray<nb::numpy, float, nb::ndim<1>>;

Blob export_block(const KVCache& cache, int group, int64_t block) {
  check_block(cache, group, block);
  const auto count = static_cast<size_t>(cache.export_size(group));
  auto* floats = new float[count];
  nb::capsule owner(floats, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  cache.export_block(group, block, floats);
  return Blob(floats, {count}, owner);
}

void import_block(KVCache& cache, int group, int64_t block, const Array1<float>& data) {
  check_block(cache, group, block);
  if (static_cast<int64_t>(data.size()) != cache.export_size(group)) {
    throw std::invalid_argument("A block to import has the wrong size.");
  }
  cache.import_block(group, block, data.data());
}

void bind_cache(nb::module_& module) {
  nb::class_<KVCache>(module, "KVCache")
      .def(
          "__init__",
          [](KVCache* self, int num_layers, int num_kv_heads, int head_size, int block_size,
             DType dtype, std::vector<int32_t> layer_groups, std::vector<int32_t> num_blocks) {
            new (self) KVCache({num_layers, num_kv_heads, head_size, block_size, dtype,
                                std::move(layer_groups), std::move(num_blocks)});
          },
          nb::arg("num_layers"), nb::arg("num_kv_heads"), nb::arg("head_size"),
          nb::arg("block_size"), nb::arg("dtype"), nb::arg("layer_groups"), nb::arg("num_blocks"))
      .def("clear", &KVCache::clear)
      .def("copy_block",
           [](KVCache& cache, int group, int64_t source, int64_t target) {
             cache.copy_block(group, check_block(cache, group, source),
                              check_block(cache, group, target));
           })
      .def("export_block", &export_block)
      .def("import_block", &import_block);
}

// Names of arguments are those of kernels/ops.py.
void bind_plain_ops(nb::class_<Program>& program) {
  program
      .def(
          "add_convert",
          [](Program& self, Buffer x, Buffer out) { self.add(ConvertArgs{x, out}, {}); },
          nb::arg("x"), nb::arg("out"))
      .def(
          "add_gated_activation",
          [](Program& self, Buffer x, Buffer out, Activation kind) {
            self.add(GatedActivationArgs{x, out, kind}, {});
          },
          nb::arg("x"), nb::arg("out"), nb::arg("kind"))
      .def(
          "add_gather_outputs",
          [](Program& self, Buffer x, Buffer out) { self.add(GatherOutputsArgs{x, out}, {}); },
          nb::arg("x"), nb::arg("out"))
      .def(
          "add_soft_cap",
          [](Program& self, Buffer x, float cap) { self.add(SoftCapArgs{x, cap}, {}); },
          nb::arg("x"), nb::arg("cap"));
}

// Those that only encoders have.
void bind_encoder_ops(nb::class_<Program>& program) {
  program
      .def(
          "add_activation",
          [](Program& self, Buffer x, Buffer out, Activation kind) {
            self.add(ActivationArgs{x, out, kind}, {});
          },
          nb::arg("x"), nb::arg("out"), nb::arg("kind"))
      .def(
          "add_layer_norm",
          [](Program& self, Buffer x, const VectorPtr& weight, const VectorPtr& bias, Buffer out,
             float eps) {
            self.add(LayerNormArgs{x, weight->data(), bias->data(), out, eps}, {weight, bias});
          },
          nb::arg("x"), nb::arg("weight"), nb::arg("bias"), nb::arg("out"), nb::arg("eps"))
      .def(
          "add_add_positions",
          [](Program& self, const VectorPtr& table, Buffer out) {
            self.add(AddPositionsArgs{table->data(), table->size / out.width, out}, {table});
          },
          nb::arg("table"), nb::arg("out"));
}

void bind_linear_ops(nb::class_<Program>& program) {
  program
      .def(
          "add_embed",
          [](Program& self, const WeightPtr& table, Buffer out, float scale) {
            self.add(EmbedArgs{table->packed, out, scale}, {table});
          },
          nb::arg("table"), nb::arg("out"), nb::arg("scale"))
      .def(
          "add_linear",
          [](Program& self, Buffer x, const WeightPtr& weight, Buffer out,
             const std::optional<VectorPtr>& bias, bool accumulate, int first_column, float scale) {
            Owners owners{weight};
            if (bias.has_value()) owners.push_back(*bias);
            self.add(
                LinearArgs{x, weight->packed, out, data_of(bias), accumulate, first_column, scale},
                std::move(owners));
          },
          nb::arg("x"), nb::arg("weight"), nb::arg("out"), nb::arg("bias").none(),
          nb::arg("accumulate"), nb::arg("first_column"), nb::arg("scale"))
      .def(
          "add_adapt",
          [](Program& self, Buffer x, const std::shared_ptr<Adapters>& adapters, Buffer out,
             int first_column, float scale) {
            self.add(AdaptArgs{x, &adapters->table, out, first_column, scale}, {adapters});
          },
          nb::arg("x"), nb::arg("adapters"), nb::arg("out"), nb::arg("first_column"),
          nb::arg("scale"))
      .def(
          "add_rms_norm",
          [](Program& self, Buffer x, const VectorPtr& weight, Buffer out, float eps) {
            self.add(RmsNormArgs{x, weight->data(), out, eps}, {weight});
          },
          nb::arg("x"), nb::arg("weight"), nb::arg("out"), nb::arg("eps"))
      .def(
          "add_rms_norm_add",
          [](Program& self, Buffer x, const VectorPtr& weight, Buffer out, float eps) {
            self.add(RmsNormAddArgs{x, weight->data(), out, eps}, {weight});
          },
          nb::arg("x"), nb::arg("weight"), nb::arg("out"), nb::arg("eps"));
}

void bind_attention_ops(nb::class_<Program>& program) {
  program
      .def(
          "add_rope_table",
          [](Program& self, Buffer out, const VectorPtr& frequencies, float scale) {
            self.add(RopeTableArgs{out, frequencies->data(), scale}, {frequencies});
          },
          nb::arg("out"), nb::arg("frequencies"), nb::arg("scale"))
      .def(
          "add_rotate_and_store",
          [](Program& self, Buffer qkv, Buffer rope, int layer, int num_heads,
             const std::optional<VectorPtr>& q_norm, const std::optional<VectorPtr>& k_norm,
             float eps) {
            check_layer(self.cache(), layer);
            Owners owners;
            if (q_norm.has_value()) owners.push_back(*q_norm);
            if (k_norm.has_value()) owners.push_back(*k_norm);
            self.add(RotateAndStoreArgs{qkv, rope, layer, num_heads, data_of(q_norm),
                                        data_of(k_norm), eps},
                     std::move(owners));
          },
          nb::arg("qkv"), nb::arg("rope"), nb::arg("layer"), nb::arg("num_heads"),
          nb::arg("q_norm").none(), nb::arg("k_norm").none(), nb::arg("eps"))
      .def(
          "add_attention",
          [](Program& self, Buffer qkv, Buffer out, int layer, int num_heads, float scale,
             float soft_cap, int window, bool is_causal, const std::optional<Buffer>& mass,
             bool adds_mass) {
            check_layer(self.cache(), layer);
            self.add(AttentionArgs{qkv, out, layer, num_heads, scale, soft_cap, window, is_causal,
                                   mass.value_or(Buffer{}), adds_mass},
                     {});
          },
          nb::arg("qkv"), nb::arg("out"), nb::arg("layer"), nb::arg("num_heads"), nb::arg("scale"),
          nb::arg("soft_cap"), nb::arg("window"), nb::arg("is_causal"), nb::arg("mass").none(),
          nb::arg("adds_mass"));
}

}  // namespace

void bind_program(nb::module_& module) {
  nb::class_<Device>(module, "Device")
      .def(nb::init<Isa, int>(), nb::arg("isa"), nb::arg("num_threads"))
      .def("operand_dtype", &Device::operand_dtype)
      .def_prop_ro("isa", &Device::isa)
      .def_prop_ro("num_threads", [](Device& device) { return device.pool().num_threads(); });
  nb::class_<Buffer>(module, "Buffer");
  bind_cache(module);
  nb::class_<Program> program(module, "Program");
  program
      .def(
          "__init__",
          [](Program* self, std::shared_ptr<Device> device, std::shared_ptr<KVCache> cache,
             int max_tokens, int max_outputs) {
            new (self) Program(std::move(device), std::move(cache), {max_tokens, max_outputs});
          },
          nb::arg("device"), nb::arg("cache"), nb::arg("max_tokens"), nb::arg("max_outputs"))
      .def("add_buffer", &Program::add_buffer)
      .def("read", &read)
      .def("read_bytes", &read_bytes)
      .def("write", &write)
      .def("clear", &Program::clear)
      .def("set_profiling", &Program::set_profiling)
      .def("set_row_blocks", &Program::set_row_blocks)
      .def("times", &times)
      .def_prop_ro("arena_bytes", &Program::arena_bytes)
      .def_prop_ro("num_ops", &Program::num_ops);
  nb::class_<BoundStep>(module, "BoundStep")
      .def(nb::init<std::shared_ptr<Program>, Array1<int32_t>, Array1<int32_t>, Array1<int32_t>,
                    Array1<int32_t>, Array1<int32_t>, std::vector<Array2<int32_t>>, Array1<int32_t>,
                    std::optional<Array1<int32_t>>, std::optional<Array2<float>>, nb::object>(),
           nb::arg("program"), nb::arg("token_ids"), nb::arg("positions"), nb::arg("query_starts"),
           nb::arg("key_starts"), nb::arg("slots"), nb::arg("block_tables"), nb::arg("output_rows"),
           nb::arg("adapters").none(), nb::arg("embeddings").none(), nb::arg("result").none())
      .def("__call__", &BoundStep::run);
  bind_plain_ops(program);
  bind_encoder_ops(program);
  bind_linear_ops(program);
  bind_attention_ops(program);
}

}  // namespace headrace
