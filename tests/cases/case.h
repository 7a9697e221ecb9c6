// A case folder (model.onnx, inputs.npz, expected.npz, case.json), run through the public API and
// measured.
//
// case.json may say how the model is compiled and what is expected beyond the numbers:
//   "compile": {"loss": "cross_entropy", "loss_input": …, "force_training": true, "dims": {"N": 4}}
//       as the options of `halfnote compile`; with a loss to attach there is no "loss_output"
//   "min_16bit_share": 0          another bar for the share of 16-bit contractions (f64 models)
//   "refused": {"exit_code": 3, "message": "part of the message"}   the model must not compile
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace halfnote::cases {

/// What one case measured, and the bars it was held against.
struct CaseResult {
  double loss_error = 0, loss_bar = 0;  // relative
  double gradient_error = 0,
         gradient_bar = 0;  // worst tensor: error norm over its allowance's unit
  std::string worst_gradient;
  double cosine = 1, cosine_bar = 0;                                 // over all parameters
  std::map<std::string, double> trajectory_errors, trajectory_bars;  // by optimizer, relative
  double low_share = 0, low_share_bar = 0;  // contraction FLOPs on 16-bit inputs
  std::string refusal;                      // the message of a case that must be refused
  std::vector<std::string> failures;        // the bars that were missed
};

/// Compiles and runs the case, on the kernels whose name starts with `kernels`. Throws Error where
/// the case or the model cannot be read, compiled or run.
CaseResult run_case(const std::filesystem::path& folder, DType precision,
                    const std::string& kernels = {});

/// One line for the terminal.
std::string describe(const std::string& name, const CaseResult& result);

}  // namespace halfnote::cases
