#include "runtime/core/tune/device_tuner.h"

#include <fmt/format.h>

#include <optional>

#include "kernels/layout.h"
#include "runtime/core/layout.h"
#include "runtime/core/tune/device_trial.h"
#include "runtime/core/tune/tuner.h"

namespace halfnote {
namespace {

struct DeviceCandidate {
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

std::vector<DeviceCandidate> candidates(const KernelCall& call, const Device& device) {
  std::vector<DeviceCandidate> all;
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

/// Calls one after the other, each by its chosen kernel, on values that they share with others.
struct Chain {
  std::vector<KernelChoice> kernels;
  TrialWay way;
};

/// Adds the operands of a call that `values` lacks.
void add_operands(const std::vector<Operand>& operands, const std::vector<int>& numbers,
                  std::vector<Operand>& values) {
  for (size_t i = 0; i < operands.size(); ++i) {
    if (numbers.at(i) < 0) continue;
    const auto number = static_cast<size_t>(numbers[i]);
    if (values.size() <= number) values.resize(number + 1);
    if (!values[number].present() || operands[i].constant != nullptr) values[number] = operands[i];
  }
}

/// Nothing if a call has no kernel.
std::optional<Chain> plan_chain(const std::vector<LinkedCall>& calls, const KernelSource& source,
                                std::vector<Operand>& values) {
  Chain chain;
  for (const LinkedCall& linked : calls) {
    KernelChoice choice = choose_kernel(linked.call, source);
    if (choice.kernel == nullptr) return std::nullopt;
    add_operands(linked.call.inputs, linked.inputs, values);
    add_operands(linked.call.outputs, linked.outputs, values);
    // A view costs nothing, and its values are made up as all are.
    if (!choice.kernel->is_view())
      chain.way.push_back({choice.kernel.get(), linked.inputs, linked.outputs});
    chain.kernels.push_back(std::move(choice));
  }
  return chain;
}

/// Ops, operands with their numbers and attributes of calls, those of one behind those of another.
CallKey key_of(const std::vector<LinkedCall>& calls) {
  CallKey all;
  for (const LinkedCall& linked : calls) {
    const CallKey one = halfnote::key_of(linked.call);
    const char* comma = &linked == calls.data() ? "" : ", ";
    all.op += comma + one.op;
    all.operands += fmt::format("{}{} ({} -> {})", comma, one.operands,
                                fmt::join(linked.inputs, " "), fmt::join(linked.outputs, " "));
    all.attributes += comma + one.attributes;
  }
  return all;
}

CallKey key_of(const std::vector<LinkedCall>& now, const std::vector<LinkedCall>& instead) {
  const CallKey fused = key_of(instead), apart = key_of(now);
  return {fmt::format("{} for {}", fused.op, apart.op),
          fmt::format("{} for {}", fused.operands, apart.operands),
          fmt::format("{} for {}", fused.attributes, apart.attributes)};
}

MeasuredFusion measure_exchange(const std::vector<LinkedCall>& now,
                                const std::vector<LinkedCall>& instead,
                                const KernelSource& source) {
  std::vector<Operand> values;
  const std::optional<Chain> fused = plan_chain(instead, source, values);
  if (!fused) return {};
  const std::optional<Chain> apart = plan_chain(now, source, values);
  if (!apart) return {};
  const std::vector<double> seconds =
      time_on_device(*source.device, values, {fused->way, apart->way});
  return {seconds[0] * kTimeTie < seconds[1], 1e3 * seconds[0], 1e3 * seconds[1]};
}

}  // namespace

std::vector<MeasuredKernel> measure_on_device(const KernelCall& call, Device& device) {
  const std::vector<DeviceCandidate> all = candidates(call, device);
  if (all.size() < 2) return {};
  std::vector<Operand> values;
  std::vector<TrialWay> ways;
  const TrialStep step = numbered(call, *all.front().kernel, values);
  for (const DeviceCandidate& candidate : all) {
    ways.push_back({step});
    ways.back().front().kernel = candidate.kernel.get();
  }
  const std::vector<double> seconds = time_on_device(device, values, ways);
  std::vector<MeasuredKernel> measured;
  for (size_t i = 0; i < all.size(); ++i) measured.push_back({all[i].name, 1e3 * seconds[i]});
  return measured;
}

bool exchange_pays(const std::vector<LinkedCall>& now, const std::vector<LinkedCall>& instead,
                   const KernelSource& source) {
  if (source.choices == nullptr || source.device == nullptr) return false;
  const CallKey key = key_of(now, instead);
  if (const MeasuredFusion* known = source.choices->find_fusion(key)) return known->pays;
  if (!source.tune || source.choices->contains(key)) return false;
  MeasuredFusion measured;
  try {
    measured = measure_exchange(now, instead, source);
  } catch (const Error& error) {
    if (!is_no_time(error)) throw;
    source.choices->set_unmeasured(key, error.what());
    return false;
  }
  source.choices->set_fusion(key, measured);
  return measured.pays;
}

}  // namespace halfnote
