// LayerNormalization: the kernels of line_norm.h.
#include "kernels/cuda/normalization/line_norm.h"

namespace halfnote::HN_CUDA {

std::vector<KernelRow> layer_norm_rows() {
  return {
      {"", "LayerNormalization", "own.layer_norm", prepare_norm<LineNorm::kLayer>},
      {"ai.halfnote", "LayerNormalization", "own.layer_norm", prepare_norm<LineNorm::kLayer>},
      layer_grad_row(),
  };
}

}  // namespace halfnote::HN_CUDA
