// A case folder (model.onnx, inputs.npz, expected.npz, case.json), run through the public API and
// measured.
//
// case.json may say how the model is compiled and what is expected beyond the numbers:
//   "compile": {"loss": "cross_entropy", "loss_input": …, "force_training": true, "dims": {"N": 4}}
//       as the options of `halfnote compile`; with a loss to attach there is no "loss_output"
//   "min_16bit_share": 0          another bar for the share of 16-bit contractions (f64 models)
//   "refused": {"exit_code": 3, "message": "part of the message"}   the model must not compile
//
// A line of the report says, with e the error of a tensor's gradient and g the gradient it should
// be, in L2 norms, and G all gradients together:
//   loss   |loss - want| / |want|
//   grad   the worst tensor's |e| / (|g| + 0.01 |G|): a tensor whose gradient is 0 or next to it
//          counts by what its error means to the step. The bar in fp32 is |e| <= 1e-4 |g| + 1e-6
//          |G|, which is grad <= 1e-4; where PyTorch in f32 itself misses the first part by more,
//          that part is three times what PyTorch misses
//   cos    cosine between all gradients and those wanted
//   cpu    in fp32 on a device, beside the same run on the CPU: the worst of the loss, relative; of
//          each tensor's |e| / max(|g|, 0.01 |G|), for a gradient that should be 0 is rounding
//          alone; and of each optimizer's losses, relative. The bar is 1e-5 of each, or three times
//          what PyTorch in f32 itself misses where that is more: a model so sensitive to rounding
//          is so to the order of sums, which differs between devices
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "beside_cpu.h"

namespace halfnote::cases {

/// The gradient of one parameter, as L2 norms.
struct TensorGradient {
  std::string name;
  double error = 0, norm = 0;
};

/// What one case measured, and the bars it was held against.
struct CaseResult {
  double loss_error = 0, loss_bar = 0;  // relative
  double gradient_error = 0;            // of the worst tensor, as `grad` above
  double gradient_bar = 0;              // what |g| is multiplied by
  std::vector<TensorGradient> gradients;
  double gradient_norm = 0;                                          // |G|
  double cosine = 1, cosine_bar = 0;                                 // over all parameters
  std::map<std::string, double> trajectory_errors, trajectory_bars;  // by optimizer, relative
  double low_share = 0, low_share_bar = 0;  // contraction FLOPs on 16-bit inputs
  std::string refusal;                      // the message of a case that must be refused
  std::optional<BesideCpu> beside_cpu;      // in fp32 on a device
  std::vector<std::string> failures;        // the bars that were missed
};

/// Compiles and runs the case on a device, on the kernels whose name starts with `kernels`. Throws
/// Error where the case or the model cannot be read, compiled or run.
CaseResult run_case(const std::filesystem::path& folder, DType precision,
                    const std::string& kernels = {}, const std::string& device = "cpu");

/// One line for the terminal.
std::string describe(const std::string& name, const CaseResult& result);

}  // namespace halfnote::cases
