// RMSNormalizationGrad: the kernels of line_norm_grad.h.
#include "kernels/cuda/normalization/line_norm_grad.h"

namespace halfnote::HN_CUDA {

KernelRow rms_grad_row() {
  return {"ai.halfnote", "RMSNormalizationGrad", "own.rms_norm", prepare_norm_grad<LineNorm::kRms>};
}

}  // namespace halfnote::HN_CUDA
