#include "runtime/core/tune/device_tuner.h"

#include "kernels/layout.h"
#include "runtime/core/layout.h"
#include "runtime/core/tune/device_trial.h"
#include "runtime/core/tune/tuner.h"

namespace halfnote {
namespace {

struct Candidate {
  std::string name;
  std::unique_ptr<Kernel> kernel;
};

std::vector<bool> bits_of(uint32_t bits, size_t count) {
  std::vector<bool> all(count);
  for (size_t i = 0; i < count && i < 32; ++i) all[i] = (bits >> i & 1) != 0;
  return all;
}

/// The form in which the plan most likely runs a row: in the layout of the device's regions where
/// it has such a form and prefers it.
struct RowForm {
  const KernelRow* row = nullptr;
  KernelCall call;
};

RowForm likely_form(const KernelRow& row, const KernelCall& call, const RegionLayout& regions) {
  for (const BlockedRow* blocked : blocked_rows_of(regions, row)) {
    const BlockedOperands operands = blocked->operands(call);
    if (!operands.preferred) continue;
    KernelCall laid = call;
    set_layouts(laid.inputs, bits_of(operands.inputs, call.inputs.size()), regions.layout);
    set_layouts(laid.outputs, bits_of(operands.outputs, call.outputs.size()), regions.layout);
    if (blocked->row.prepare(laid)) return {&blocked->row, std::move(laid)};
  }
  return {&row, call};
}

std::vector<Candidate> candidates(const KernelCall& call, const Device& device) {
  std::vector<Candidate> all;
  for (const KernelRow* row : device.kernels().rows_of(call.domain, call.op)) {
    if (row->use == RowUse::kFallback && !all.empty()) continue;
    Prepared plain = row->prepare(call);
    if (!plain) continue;
    std::vector<std::string> algorithms;
    if (row->algorithms != nullptr) algorithms = row->algorithms(call);
    RowForm form = likely_form(*row, call, device.regions());
    if (algorithms.empty()) algorithms.emplace_back();
    for (const std::string& algorithm : algorithms) {
      form.call.algorithm = algorithm;
      if (Prepared prepared = form.row->prepare(form.call)) {
        all.push_back({MeasuredKernel::name(row->name, algorithm), std::move(prepared.kernel)});
      }
    }
  }
  return all;
}

/// Numbers the operands of a call, behind those that `values` has.
TrialStep numbered(const KernelCall& call, const Kernel& kernel, std::vector<Operand>& values) {
  TrialStep step{&kernel, {}, {}};
  const auto add = [&](const Operand& operand) {
    if (!operand.present()) return -1;
    values.push_back(operand);
    return static_cast<int>(values.size()) - 1;
  };
  for (const Operand& input : call.inputs) step.inputs.push_back(add(input));
  for (const Operand& output : call.outputs) step.outputs.push_back(add(output));
  return step;
}

/// A chosen kernel is never a view here: what costs nothing is left out.
bool costs_nothing(const Kernel& kernel) { return kernel.is_view(); }

/// The calls that a fusion replaces, each by its chosen kernel; `values` gets what they share.
struct Chain {
  std::vector<KernelChoice> kernels;
  TrialWay way;
};

bool plan_chain(const std::vector<LinkedCall>& apart, const KernelSource& source,
                std::vector<Operand>& values, Chain& chain) {
  std::map<int, int> numbers;  // of the links, among `values`
  const auto number = [&](int link, const Operand& operand) {
    if (link < 0 || !operand.present()) return -1;
    const auto [at, fresh] = numbers.try_emplace(link, static_cast<int>(values.size()));
    if (fresh) values.push_back(operand);
    return at->second;
  };
  for (const LinkedCall& linked : apart) {
    KernelChoice choice = choose_kernel(linked.call, source);
    if (choice.kernel == nullptr) return false;
    TrialStep step{choice.kernel.get(), {}, {}};
    for (size_t i = 0; i < linked.call.inputs.size(); ++i)
      step.inputs.push_back(number(linked.inputs.at(i), linked.call.inputs[i]));
    for (size_t i = 0; i < linked.call.outputs.size(); ++i)
      step.outputs.push_back(number(linked.outputs.at(i), linked.call.outputs[i]));
    if (!costs_nothing(*choice.kernel)) chain.way.push_back(std::move(step));
    chain.kernels.push_back(std::move(choice));
  }
  return true;
}

MeasuredFusion measure_fusion(const KernelCall& fused, const std::vector<LinkedCall>& apart,
                              const KernelSource& source) {
  const KernelChoice choice = choose_kernel(fused, source);
  std::vector<Operand> values;
  Chain chain;
  if (choice.kernel == nullptr || !plan_chain(apart, source, values, chain)) return {};
  std::vector<TrialWay> ways = {{numbered(fused, *choice.kernel, values)}, std::move(chain.way)};
  const std::vector<double> seconds = time_on_device(*source.device, values, ways);
  return {seconds[0] * kTimeTie < seconds[1], 1e3 * seconds[0], 1e3 * seconds[1]};
}

}  // namespace

std::vector<MeasuredKernel> measure_on_device(const KernelCall& call, Device& device) {
  const std::vector<Candidate> all = candidates(call, device);
  if (all.size() < 2) return {};
  std::vector<Operand> values;
  std::vector<TrialWay> ways;
  const TrialStep step = numbered(call, *all.front().kernel, values);
  for (const Candidate& candidate : all) {
    ways.push_back({step});
    ways.back().front().kernel = candidate.kernel.get();
  }
  const std::vector<double> seconds = time_on_device(device, values, ways);
  std::vector<MeasuredKernel> measured;
  for (size_t i = 0; i < all.size(); ++i) measured.push_back({all[i].name, 1e3 * seconds[i]});
  return measured;
}

bool fusion_pays(const KernelCall& fused, const std::vector<LinkedCall>& apart,
                 const KernelSource& source) {
  if (source.choices == nullptr || source.device == nullptr) return false;
  const CallKey key = key_of(fused);
  if (const MeasuredFusion* known = source.choices->find_fusion(key)) return known->pays;
  if (!source.tune) return false;
  MeasuredFusion measured;
  try {
    measured = measure_fusion(fused, apart, source);
  } catch (const Error& error) {
    if (!is_no_time(error)) throw;
    if (!source.choices->contains(key)) source.choices->set_unmeasured(key, error.what());
    return false;
  }
  source.choices->set_fusion(key, measured);
  return measured.pays;
}

}  // namespace halfnote
