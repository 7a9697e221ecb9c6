#include "runtime/core/profile/table.h"

#include <algorithm>
#include <map>

namespace halfnote {
namespace {

constexpr size_t kListed = 8;  // operands; AllFinite takes every gradient

std::string list_text(const std::vector<StepOperand>& operands, bool shapes) {
  std::string text;
  size_t count = 0;
  for (const StepOperand& operand : operands) {
    if (operand.constant || operand.dtype == DType::kUndefined) continue;
    if (++count > kListed) continue;
    text += (text.empty() ? "" : " ") + std::string(short_name(operand.dtype));
    if (shapes) text += to_string(operand.shape);
  }
  if (count > kListed) text += " and " + std::to_string(count - kListed) + " more";
  return text;
}

std::string join(const ProgramStep& step, bool shapes) {
  const std::string inputs = list_text(step.input_types, shapes);
  return inputs + (inputs.empty() ? "-> " : " -> ") + list_text(step.output_types, shapes);
}

std::string refusals_of(const ProgramStep& step) {
  std::string text;
  for (const Refusal& refusal : step.refusals) {
    text += (text.empty() ? "" : "; ") + std::string(refusal.kernel) + ": " + refusal.reason;
  }
  return text;
}

/// Rows by key, in the order of their first step, then longest first.
class Rows {
 public:
  void add(const std::string& key, const ProgramStep& step, ProfileRow one) {
    const auto [found, isNew] = index_.emplace(key, rows_.size());
    if (isNew) {
      rows_.push_back({});
      longest_.push_back(-1);
    }
    ProfileRow& row = rows_[found->second];
    if (one.seconds > longest_[found->second]) {
      longest_[found->second] = one.seconds;
      row.op = step.op;
      row.kernel = kernel_name(step);
      row.types = join(step, false);
      row.shapes = join(step, true);
      row.refusals = refusals_of(step);
    }
    ++row.calls;
    row.seconds += one.seconds;
    row.best_seconds += one.best_seconds;
    row.flops += one.flops;
    row.bytes += one.bytes;
    row.peak_time += one.peak_time;
  }

  std::vector<ProfileRow> sorted() && {
    std::stable_sort(rows_.begin(), rows_.end(), [](const ProfileRow& a, const ProfileRow& b) {
      return a.seconds > b.seconds;
    });
    return std::move(rows_);
  }

 private:
  std::map<std::string, size_t> index_;
  std::vector<ProfileRow> rows_;
  std::vector<double> longest_;
};

}  // namespace

double operand_bytes(const ProgramStep& step) {
  double bytes = 0;
  for (const auto* operands : {&step.input_types, &step.output_types}) {
    for (const StepOperand& operand : *operands) {
      if (operand.dtype == DType::kUndefined) continue;
      bytes += static_cast<double>(element_count(operand.shape)) *
               static_cast<double>(size_of(operand.dtype));
    }
  }
  return bytes;
}

std::string operands_text(const ProgramStep& step) { return join(step, true); }

std::string_view kernel_name(const ProgramStep& step) {
  return step.row == nullptr ? "bodies" : step.row->name;
}

double peak_seconds(const ProgramStep& step, const MachinePeak& peak) {
  if (step.flops > 0) {
    const bool bf16 =
        step.reads_16bit && !step.input_types.empty() && step.input_types[0].dtype == DType::kBF16;
    const double rate = bf16 ? peak.bf16_flops : peak.f32_flops;
    return rate > 0 ? step.flops / rate : 0;
  }
  return peak.bytes > 0 ? operand_bytes(step) / peak.bytes : 0;
}

ProfileTable tabulate(const ProgramProfile& profile, const MachinePeak& peak) {
  const Program& program = profile.program();
  ProfileTable table;
  table.program = profile.name();
  table.runs = profile.runs();
  table.steps = static_cast<int64_t>(program.steps.size());
  if (table.runs == 0) return table;
  const double runs = static_cast<double>(table.runs);
  table.seconds = profile.run_seconds() / runs;
  table.best_seconds = profile.best_run_seconds();
  table.copies = profile.seconds(program.steps.size()) / runs;
  table.outside = profile.span_seconds() - profile.run_seconds();
  Rows kernels, shapes;
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const ProgramStep& step = program.steps[s];
    ProfileRow one;
    one.seconds = profile.seconds(s) / runs;
    one.best_seconds = profile.best_seconds(s);
    one.flops = step.flops;
    one.bytes = operand_bytes(step);
    one.peak_time = peak_seconds(step, peak);
    const std::string key = step.op + '\n' + std::string(kernel_name(step)) + '\n';
    kernels.add(key + join(step, false), step, one);
    shapes.add(key + join(step, true), step, one);
    if (step.flops <= 0) continue;
    table.contractions += one.seconds;
    table.flops += one.flops;
    table.flops_peak_time += one.peak_time;
  }
  table.kernels = std::move(kernels).sorted();
  table.shapes = std::move(shapes).sorted();
  return table;
}

}  // namespace halfnote
