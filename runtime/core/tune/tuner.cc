#include "runtime/core/tune/tuner.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "runtime/core/memory/best_fit.h"
#include "runtime/core/pages.h"
#include "runtime/core/tune/device_tuner.h"
#include "runtime/core/tune/made_up.h"

namespace halfnote {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLeastRuns = 3, kMostRuns = 25;
constexpr double kEnoughSeconds = 0.05;  // of measured runs a kernel
constexpr std::string_view kReferenceRow = "reference";

struct TunedRow {
  const KernelRow* row = nullptr;
  std::unique_ptr<Kernel> kernel;
  double best = std::numeric_limits<double>::infinity(), sum = 0;
};

void fill_operand(const Operand& operand, std::byte* to) {
  if (operand.constant != nullptr) {
    std::memcpy(to, operand.constant->bytes(), operand.constant->byte_size());
    return;
  }
  make_up(operand.dtype, operand.size(), to);
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

std::vector<MeasuredKernel> measure_on_cpu(const KernelCall& call) {
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
  std::vector<MeasuredKernel> measured;
  for (const TunedRow& row : rows) measured.push_back({std::string(row.row->name), 1e3 * row.best});
  return measured;
}

/// The fastest first, but for ties.
void order_by_time(std::vector<MeasuredKernel>& measured) {
  if (measured.empty()) return;
  double shortest = measured[0].ms;
  for (const MeasuredKernel& one : measured) shortest = std::min(shortest, one.ms);
  const auto first = std::ranges::find_if(
      measured, [&](const MeasuredKernel& one) { return one.ms <= shortest * kTimeTie; });
  std::rotate(measured.begin(), first, first + 1);
  std::stable_sort(measured.begin() + 1, measured.end(),
                   [](const MeasuredKernel& a, const MeasuredKernel& b) { return a.ms < b.ms; });
}

/// Measures a call that the choices lack, and notes why where that cannot be done.
void tune(const KernelCall& call, const CallKey& key, const KernelSource& source) {
  try {
    source.choices->set(key, measure_kernels(call, source.device));
  } catch (const Error& error) {
    if (source.device == nullptr || !is_no_time(error)) throw;
    source.choices->set_unmeasured(key, error.what());
  }
}

const KernelTable& table_of(const KernelSource& source) {
  return source.device == nullptr ? cpu_kernels() : source.device->kernels();
}

}  // namespace

std::vector<MeasuredKernel> measure_kernels(const KernelCall& call, Device* device) {
  std::vector<MeasuredKernel> measured =
      device == nullptr ? measure_on_cpu(call) : measure_on_device(call, *device);
  order_by_time(measured);
  return measured;
}

namespace {

/// The kernel of a plan file for a call; what is wrong with it is wrong with the file, whose path
/// is empty where the choice was measured just now.
Prepared prepare_chosen(const KernelRow& row, const KernelCall& call, std::string_view name,
                        const Place& place) {
  try {
    Prepared prepared = row.prepare(call);
    if (prepared) return prepared;
    throw Error(ErrorCode::kUsage, "the kernel of the plan file does not take the call")
        .expected("what " + std::string(name) + " takes", prepared.refusal)
        .hint("measure again with --tune");
  } catch (Error& error) {
    if (error.code() == ErrorCode::kUsage) error.within(place);
    throw;
  }
}

}  // namespace

KernelChoice choose_kernel(const KernelCall& call, const KernelSource& source) {
  const KernelTable& table = table_of(source);
  if (source.choices == nullptr) return table.choose(call, source.names);
  const CallKey key = key_of(call);
  if (source.tune && !source.choices->contains(key)) tune(call, key, source);
  const std::string_view name = source.choices->find(key);
  if (name.empty()) return table.choose(call, source.names);
  KernelChoice choice;
  for (const KernelRow* row : table.rows_of(call.domain, call.op)) {
    if (row->name != MeasuredKernel::row(name)) {
      choice.refusals.push_back({row->name, "the plan file has another kernel"});
      continue;
    }
    KernelCall asked = call;
    asked.algorithm = MeasuredKernel::algorithm(name);
    choice.row = row;
    choice.kernel = prepare_chosen(*row, asked, name, {source.choices->path(), {}, key.op}).kernel;
    const bool lacks_one = asked.algorithm.empty() && row->algorithms != nullptr;
    if (lacks_one && !row->algorithms(call).empty()) {
      throw Error(ErrorCode::kUsage, "a kernel without the algorithm that was measured")
          .at({source.choices->path(), {}, key.op})
          .expected(std::string(row->name) + " ALGORITHM, as --tune wrote it", std::string(name))
          .hint("measure again with --tune");
    }
    choice.algorithm = asked.algorithm;
    return choice;
  }
  throw Error(ErrorCode::kInternal, "a plan file with an unknown kernel").at({{}, {}, key.op});
}

}  // namespace halfnote
