#include "runtime/core/tune/tuner.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/float16.h"
#include "runtime/core/memory/best_fit.h"
#include "runtime/core/pages.h"

namespace halfnote {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLeastRuns = 3, kMostRuns = 25;
constexpr double kEnoughSeconds = 0.05;  // of measured runs a kernel
constexpr double kTie = 1.02;            // times this close are the same: the table decides
constexpr std::string_view kReferenceRow = "reference";

struct TunedRow {
  const KernelRow* row = nullptr;
  std::unique_ptr<Kernel> kernel;
  double best = std::numeric_limits<double>::infinity(), sum = 0;
};

/// Numbers in [-1, 1) for floats, 1 for bools, 0 for the rest: an index, a label, a step.
void fill_operand(const Operand& operand, std::byte* to) {
  if (operand.constant != nullptr) {
    std::memcpy(to, operand.constant->bytes(), operand.constant->byte_size());
    return;
  }
  uint32_t bits = 0x9e3779b9u;
  const auto next = [&bits] {
    bits = bits * 1664525u + 1013904223u;
    return static_cast<float>(bits >> 8) * 0x1p-23f - 1.0f;
  };
  for (int64_t i = 0; i < operand.size(); ++i) {
    switch (operand.dtype) {
      case DType::kF32:
        reinterpret_cast<float*>(to)[i] = next();
        break;
      case DType::kF64:
        reinterpret_cast<double*>(to)[i] = static_cast<double>(next());
        break;
      case DType::kF16:
        reinterpret_cast<Half*>(to)[i] = to_f16(next());
        break;
      case DType::kBF16:
        reinterpret_cast<BFloat16*>(to)[i] = to_bf16(next());
        break;
      case DType::kBool:
        reinterpret_cast<bool*>(to)[i] = true;
        break;
      default:
        return;  // fresh pages are zero
    }
  }
}

/// Room for the operands of one call, and for the largest workspace.
class Trial {
 public:
  Trial(const KernelCall& call, size_t workspace) {
    size_t bytes = 0;
    const auto place = [&bytes](const Operand& operand) {
      const size_t at = bytes;
      if (operand.present())
        bytes += align_up(static_cast<size_t>(operand.size()) * size_of(operand.dtype));
      return at;
    };
    std::vector<size_t> inputs, outputs;
    for (const Operand& input : call.inputs) inputs.push_back(place(input));
    for (const Operand& output : call.outputs) outputs.push_back(place(output));
    const size_t scratch = bytes;
    memory_ = allocate_pages(bytes + workspace);
    if (!memory_) throw Error(ErrorCode::kMemory, "no memory to measure kernels in");
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool present = call.inputs[i].present();
      inputs_.push_back(present ? memory_.get() + inputs[i] : nullptr);
      if (present) fill_operand(call.inputs[i], memory_.get() + inputs[i]);
    }
    for (size_t i = 0; i < outputs.size(); ++i)
      outputs_.push_back(call.outputs[i].present() ? memory_.get() + outputs[i] : nullptr);
    workspace_ = memory_.get() + scratch;
  }

  double run(const Kernel& kernel) const {
    const Clock::time_point begin = Clock::now();
    kernel.run({inputs_, outputs_, workspace_});
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

 private:
  Pages memory_;
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
  std::byte* workspace_ = nullptr;
};

std::vector<TunedRow> candidates(const KernelCall& call) {
  std::vector<TunedRow> rows;
  for (const KernelRow* row : cpu_kernels().rows_of(call.domain, call.op)) {
    if (row->name == kReferenceRow) continue;
    if (Prepared prepared = row->prepare(call)) rows.push_back({row, std::move(prepared.kernel)});
  }
  return rows;
}

bool is_measured(const TunedRow& row, int runs) {
  return runs >= kMostRuns || (runs >= kLeastRuns && row.sum >= kEnoughSeconds);
}

}  // namespace

std::vector<MeasuredKernel> measure_kernels(const KernelCall& call) {
  std::vector<TunedRow> rows = candidates(call);
  if (rows.size() < 2) return {};
  size_t workspace = 0;
  for (const TunedRow& row : rows) workspace = std::max(workspace, row.kernel->workspace_bytes());
  const Trial trial(call, workspace);
  for (const TunedRow& row : rows) trial.run(*row.kernel);  // pages and caches
  for (int runs = 0;
       !std::ranges::all_of(rows, [&](const TunedRow& row) { return is_measured(row, runs); });
       ++runs) {
    for (TunedRow& row : rows) {
      const double seconds = trial.run(*row.kernel);
      row.best = std::min(row.best, seconds);
      row.sum += seconds;
    }
  }
  double shortest = rows[0].best;
  for (const TunedRow& row : rows) shortest = std::min(shortest, row.best);
  const auto first =
      std::ranges::find_if(rows, [&](const TunedRow& row) { return row.best <= shortest * kTie; });
  std::rotate(rows.begin(), first, first + 1);
  std::stable_sort(rows.begin() + 1, rows.end(),
                   [](const TunedRow& a, const TunedRow& b) { return a.best < b.best; });
  std::vector<MeasuredKernel> measured;
  for (const TunedRow& row : rows) measured.push_back({std::string(row.row->name), 1e3 * row.best});
  return measured;
}

KernelChoice choose_kernel(const KernelCall& call, const KernelSource& source) {
  if (source.choices == nullptr) return cpu_kernels().choose(call, source.names);
  const CallKey key = key_of(call);
  if (source.tune && !source.choices->contains(key))
    source.choices->set(key, measure_kernels(call));
  const std::string_view name = source.choices->find(key);
  if (name.empty()) return cpu_kernels().choose(call, source.names);
  KernelChoice choice;
  for (const KernelRow* row : cpu_kernels().rows_of(call.domain, call.op)) {
    if (row->name != name) {
      choice.refusals.push_back({row->name, "the plan file has another kernel"});
      continue;
    }
    Prepared prepared = row->prepare(call);
    if (!prepared) {
      throw Error(ErrorCode::kUsage, "the kernel of the plan file does not take the call")
          .at({{}, {}, key.op})
          .expected("what " + std::string(name) + " takes", prepared.refusal)
          .hint("measure again with --tune");
    }
    choice.row = row;
    choice.kernel = std::move(prepared.kernel);
    return choice;
  }
  throw Error(ErrorCode::kInternal, "a plan file with an unknown kernel").at({{}, {}, key.op});
}

}  // namespace halfnote
