// `linear` for machines with AMX: the tile registers from one whole tile of rows on, AVX-512 for
// the rest. bf16 stays there, too: a tile sums even and odd inputs apart, `vdpbf16ps` does not, and
// the bits of a row must not depend on how many rows there are.
#include "gemm/amx/kernel.h"
#include "gemm/amx/tile_unit.h"
#include "gemm/panels.h"

namespace headrace::avx512 {

void linear(const LinearArgs& args, OpContext& context);

}  // namespace headrace::avx512

namespace headrace::HR_ISA {

void linear(const LinearArgs& args, OpContext& context) {
  if (!is_quantized(args.weight.format) || context.rows(args.x.rows) < kTileHeight) {
    return avx512::linear(args, context);
  }
  linear_on_tiles<TileUnit>(args, context);
}

}  // namespace headrace::HR_ISA
