// A profile as rows: steps of equal op, kernel and types are one row; of equal shapes too, in the
// second list.
#pragma once

#include <string>
#include <vector>

#include "runtime/core/profile/peak.h"
#include "runtime/core/profile/profiler.h"

namespace halfnote {

/// Steps that are alike. Times are those of one run of the program: the mean of the counted runs.
struct ProfileRow {
  std::string op, kernel;
  std::string types;   // `bf16 bf16 -> f32`, operands known before the first step left out
  std::string shapes;  // the same with shapes, of the row's longest step
  int64_t calls = 0;   // in one run
  double seconds = 0, best_seconds = 0;
  double flops = 0;      // of contractions
  double bytes = 0;      // read and written: each operand once
  double peak_time = 0;  // what it would take at the machine's peak
  std::string refusals;  // why better kernels said no, of the longest step

  /// Share of the peak of matmul (contractions) or memory (all else), in [0, 1].
  double peak_share() const { return seconds > 0 ? peak_time / seconds : 0; }
};

struct ProfileTable {
  std::string program;
  int64_t runs = 0, steps = 0;
  double seconds = 0, best_seconds = 0;  // of one run
  double copies = 0;                     // of it: results to their states
  double outside = 0;                    // between the runs: data, other programs, metrics, files
  double contractions = 0;               // seconds of a run in them
  double flops = 0, flops_peak_time = 0;
  std::vector<ProfileRow> kernels, shapes;  // longest first
};

ProfileTable tabulate(const ProgramProfile& profile, const MachinePeak& peak);

/// Seconds that a step takes at the machine's peak: of matmul in the type of its operands for a
/// contraction, of memory for all else.
double peak_seconds(const ProgramStep& step, const MachinePeak& peak);

/// Bytes of all operands of a step, each once.
double operand_bytes(const ProgramStep& step);

/// `f32[8,128] f32[128] -> f32[8]`, without those known before the first step.
std::string operands_text(const ProgramStep& step);

/// The row that runs a step; `bodies` for If, Loop and Scan.
std::string_view kernel_name(const ProgramStep& step);

}  // namespace halfnote
