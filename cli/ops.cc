// halfnote ops: what the compiler and a device know: operators, passes, loss-scale presets.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "cli/verbs.h"
#include "compiler/ops/operator.h"
#include "kernels/device.h"
#include "passes/manager.h"
#include "passes/precision/like.h"
#include "passes/precision/presets.h"
#include "runtime/core/control/control_step.h"
#include "runtime/core/device_ready.h"

namespace halfnote::cli {
namespace {

struct OpsArguments {
  std::string pattern, device = "cpu";
  bool passes = false, presets = false;
};

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::string full_name(const OperatorRow& row) {
  return row.domain.empty() ? std::string(row.name) : fmt::format("{}.{}", row.domain, row.name);
}

std::string since(int opset) { return opset == 0 ? "-" : std::to_string(opset); }

std::string kernels_of(const OperatorRow& row, const KernelTable& table) {
  std::vector<std::string_view> names;
  for (const KernelRow* kernel : table.rows_of(row.domain, row.name)) {
    // Several rows of one name, for different types, are one thing to the reader.
    if (std::find(names.begin(), names.end(), kernel->name) == names.end())
      names.push_back(kernel->name);
  }
  if (runs_bodies(row.domain, row.name)) return "its bodies, planned";
  return names.empty() ? "-" : fmt::format("{}", fmt::join(names, ", "));
}

std::string kernels_on(const std::string& device) {
  return device == "cpu" ? std::string("the cpu") : device;
}

std::string operator_line(const OperatorRow& row, const KernelTable& table) {
  const std::string gradient = row.gradient != nullptr ? std::string("yes")
                               : row.lower != nullptr  ? fmt::format("yes: {}", row.no_gradient)
                                                       : fmt::format("no: {}", row.no_gradient);
  return fmt::format("{:<46} {:<6} {:>3} {:>4}  {:<34} {}\n", full_name(row),
                     class_name(row.precision), since(row.legality.f16), since(row.legality.bf16),
                     kernels_of(row, table), gradient);
}

void print_operators(const std::string& pattern, const std::string& on) {
  const std::unique_ptr<Device> device = open_device(on);
  const KernelTable& table = device ? device->kernels() : cpu_kernels();
  const std::string wanted = lower(pattern);
  std::string text =
      fmt::format("{:<46} {:<6} {:>3} {:>4}  {:<34} {}\n", "operator", "class", "f16", "bf16",
                  fmt::format("kernels on {}, best first", kernels_on(on)), "gradient");
  std::vector<std::string> names;
  int shown = 0;
  for (const OperatorRow& row : operator_rows()) {
    const std::string name = full_name(row);
    names.push_back(std::string(row.name));
    if (lower(name).find(wanted) == std::string::npos) continue;
    text += operator_line(row, table);
    ++shown;
  }
  if (shown == 0) {
    const std::string_view near = closest(pattern, names);
    throw Error(ErrorCode::kUsage, fmt::format("no operator has \"{}\" in its name", pattern))
        .hint(near.empty() ? std::string("halfnote ops lists them all")
                           : fmt::format("did you mean {}?", near));
  }
  std::cout << text
            << fmt::format(
                   "{} of {} operators; f16 and bf16: the op-set from which they "
                   "are legal\n",
                   shown, names.size());
}

void print_passes() {
  for (const auto rows : {compile_pipeline(), device_pipeline()}) {
    for (const PassRow& row : rows) {
      const bool at_run = rows.data() == device_pipeline().data();
      std::cout << fmt::format("{:<22} {:<20} {}\n", row.name,
                               at_run ? stage_name(Stage::kDeviceReady) : stage_name(row.gives),
                               row.reason);
    }
  }
  std::cout << "pass, the stage it leaves the model in (device-ready: in halfnote run), and why it "
               "stands there\n";
}

/// Powers of two as such; `-` for 0, which is no bound.
std::string number(double value) {
  if (value == 0) return "-";
  int exponent = 0;
  const bool power = std::frexp(value, &exponent) == 0.5;
  return power && exponent > 5 ? fmt::format("2^{}", exponent - 1) : fmt::format("{:g}", value);
}

void print_presets() {
  std::cout << fmt::format("{:<22} {:<8} {:>5} {:>9} {:>8} {:>11} {:>5} {:>5}  {}\n", "preset",
                           "kind", "first", "interval", "warm-up", "hysteresis", "min", "max",
                           "rule of");
  for (const ScalerPreset& preset : scaler_presets()) {
    const LossScaler& s = preset.scaler;
    std::cout << fmt::format("{:<22} {:<8} {:>5} {:>9} {:>8} {:>11} {:>5} {:>5}  {}\n", preset.name,
                             s.dynamic ? "dynamic" : "fixed", number(s.init), s.interval,
                             number(static_cast<double>(s.warmup_interval)), s.hysteresis,
                             number(s.min), number(s.max), preset.what);
  }
}

std::string joined(const char* what, const std::vector<std::string_view>& ops) {
  return ops.empty() ? std::string() : fmt::format("; {}: {}", what, fmt::join(ops, " "));
}

void print_frameworks() {
  std::cout << fmt::format("\n{:<22} {:<16} {}\n", "--like", "--loss-scale", "op lists");
  for (const LikePreset& preset : like_presets()) {
    std::cout << fmt::format("{:<22} {:<16} {}{}{}{}{}\n", preset.name, preset.scaler, preset.what,
                             preset.everything ? "; 16 bit: all that the op-set allows" : "",
                             joined("16 bit", preset.low), joined("FP32", preset.fp32),
                             joined("as the neighbours", preset.follow));
  }
}

int ops(const OpsArguments& a) {
  if (a.device != "cpu" && (a.passes || a.presets)) {
    throw Error(ErrorCode::kUsage, "--device does nothing here")
        .expected("the list of operators", "--passes or --presets")
        .hint("take --device away");
  }
  if (!a.pattern.empty() && (a.passes || a.presets)) {
    throw Error(ErrorCode::kUsage, "a pattern looks for operators")
        .expected("the pattern alone", "--passes or --presets with it");
  }
  if (a.passes) print_passes();
  if (a.presets) {
    print_presets();
    print_frameworks();
  }
  if (!a.passes && !a.presets) print_operators(a.pattern, a.device);
  return 0;
}

}  // namespace

void add_ops(CLI::App& app, Action& action) {
  auto a = std::make_shared<OpsArguments>();
  CLI::App* verb = app.add_subcommand("ops", "list operators, passes and loss-scale presets");
  verb->add_option("pattern", a->pattern, "only operators with this in their name");
  verb->add_option("--device", a->device,
                   "whose kernels: cpu, cuda, cuda:N or cuda-emulated, which needs no GPU and has "
                   "cuda's (default: cpu)");
  verb->add_flag("--passes", a->passes, "the passes of compile and run, with the reason of each");
  verb->add_flag("--presets", a->presets, "the rules of --loss-scale and the op lists of --like");
  verb->footer(
      "Classes: allow (16 bit, FP32 accumulation), fp32 (math in FP32), infer (follows its\n"
      "neighbours), clear (only moves bits), struct (control flow), opaque (never retyped).");
  verb->callback([a, &action] { action = [a] { return ops(*a); }; });
}

}  // namespace halfnote::cli
