// LayerNormalizationGrad: the kernels of line_norm_grad.h.
#include "kernels/cuda/normalization/line_norm_grad.h"

namespace halfnote::HN_CUDA {

KernelRow layer_grad_row() {
  return {"ai.halfnote", "LayerNormalizationGrad", "own.layer_norm",
          prepare_norm_grad<LineNorm::kLayer>};
}

}  // namespace halfnote::HN_CUDA
