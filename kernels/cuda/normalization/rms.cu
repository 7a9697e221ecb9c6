// RMSNormalization: the kernels of line_norm.h.
#include "kernels/cuda/normalization/line_norm.h"

namespace halfnote::HN_CUDA {

std::vector<KernelRow> rms_norm_rows() {
  return {
      {"", "RMSNormalization", "own.rms_norm", prepare_norm<LineNorm::kRms>},
      {"ai.halfnote", "RMSNormalization", "own.rms_norm", prepare_norm<LineNorm::kRms>},
      rms_grad_row(),
  };
}

}  // namespace halfnote::HN_CUDA
