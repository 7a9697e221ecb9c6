#include "tests/random/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "compiler/ops/operator.h"
#include "runtime/core/evaluate.h"
#include "runtime/train/session.h"
#include "tests/random/wide.h"

namespace halfnote::random {
namespace {

constexpr int kSteps = 3;
constexpr int kRuns = 4, kSecondRuns = 64;
constexpr double kNoise = 2, kSecondNoise = 16;
constexpr double kF64 = 1e-10;  // of the largest number: what f64 sums in another order may differ
constexpr double kMostF16 = 65504.0 / 4;  // nearer to the end of f16, overflow is likely

const std::string kOnDevice = "cuda ";  // before the precision, in the name of an oracle

const char* short_of(DType precision) { return short_name(precision).data(); }

/// Runs a step node by node on the reference kernels, the states kept by hand.
class ByHand {
 public:
  explicit ByHand(Graph graph) : graph_(std::move(graph)), outputs_(graph_.outputs().size()) {
    for (const State& state : graph_.states()) graph_.add_output(graph_.main(), state.next);
  }
  double step(const std::vector<Tensor>& inputs) {
    const std::vector<Tensor> results = evaluate(graph_, inputs);
    for (size_t i = 0; i < graph_.states().size(); ++i) {
      graph_.value(graph_.states()[i].current).tensor = results[outputs_ + i];
    }
    return results[0].at_as_double(0);
  }
  const Graph& graph() const { return graph_; }

 private:
  Graph graph_;
  size_t outputs_;
};

class Judge {
 public:
  Judge(const Problem& problem, Counts& counts, std::string_view only)
      : problem_(problem), counts_(counts), only_(only) {}

  std::vector<Finding> run() {
    for (DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
      guard("plan", precision, [&] { judge_plan(precision); });
    }
    guard("exact", DType::kF32, [&] { judge_exact(); });
    Numbers truth;
    guard("compile", DType::kF64, [&] { truth = run_in_f64(); });
    if (truth.empty()) return std::move(findings_);
    for (DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
      guard(short_of(precision), precision, [&] { judge_numbers(precision, truth); });
    }
    return std::move(findings_);
  }

 private:
  /// An Error for what is unsupported is counted; any other is a finding.
  template <class Run>
  void guard(const std::string& oracle, DType precision, Run&& run) {
    if (!wanted(oracle)) return;
    try {
      run();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kUnsupported || untrained(error)) {
        ++counts_[fmt::format("refused {}: {}", short_of(precision), error.problem())];
        return;
      }
      add(oracle, fmt::format("{}: {}", short_of(precision), error.what()));
    } catch (const std::exception& error) {
      add(oracle, fmt::format("{}: {}", short_of(precision), error.what()));
    }
  }

  /// Does the oracle that is asked for, if one is, need this part?
  bool wanted(std::string_view part) const {
    if (only_.empty() || only_ == part || only_ == kOnDevice + std::string(part)) return true;
    if (only_.starts_with(kOnDevice)) return part == "compile";
    const bool of_numbers = only_ != "plan" && only_ != "exact";
    if (part == "compile") return of_numbers;  // what all numbers are compared with
    return (only_ == "passes" || only_ == "forward") && part != "plan" && part != "exact";
  }

  void add(const std::string& oracle, std::string words) {
    findings_.push_back({oracle, std::move(words)});
  }

  Model compiled(DType precision, bool with_optimizer) const {
    return compile_model(problem_.model, options_of(problem_, precision, with_optimizer)).model;
  }

  /// In f32, without an optimizer, by as few passes as will run: those that only simplify are left
  /// out.
  const Model& plain() {
    if (plain_) return *plain_;
    CompileOptions options = options_of(problem_, DType::kF32, false);
    options.skip_passes = {"fold-constants",     "canonicalize",     "eliminate-common",
                           "mend-constants",     "fold-gradients",   "merge-gradients",
                           "simplify-gradients", "absorb-gradients", "sweep-gradients",
                           "clean-casts",        "sweep-casts",      "pad-to-8",
                           "clean-padding",      "sweep-padding"};
    // What draws is numbered in order, dead nodes too.
    if (!draws(problem_.model.graph)) options.skip_passes.push_back("eliminate-dead");
    return plain_.emplace(compile_model(problem_.model, options).model);
  }

  /// The same by all passes.
  const Model& full() {
    if (!full_) full_ = compiled(DType::kF32, false);
    return *full_;
  }

  void judge_plan(DType precision) {
    const Model model = compiled(precision, true);
    ByHand by_hand(model.training.at(0).graph);
    SessionOptions options;
    options.threads = 1;
    options.kernels = "reference";
    Session session(model, options);
    const std::vector<Tensor> inputs = inputs_of(problem_, by_hand.graph());
    for (int k = 1; k <= kSteps; ++k) {
      const double want = by_hand.step(inputs), got = session.step(inputs).loss;
      if (std::memcmp(&want, &got, sizeof want) != 0 && !(std::isnan(want) && std::isnan(got))) {
        return add("plan", fmt::format("{}, step {}: loss {}, node by node {}", short_of(precision),
                                       k, got, want));
      }
      for (const State& state : by_hand.graph().states()) {
        const Value& value = by_hand.graph().value(state.current);
        const StateEntry* entry = session.state().find(value.name);
        if (entry != nullptr && identical(session.state().get(*entry), value.tensor)) continue;
        return add("plan", fmt::format("{}, step {}: state {} differs{}", short_of(precision), k,
                                       value.name, first_difference(entry, session, value.tensor)));
      }
    }
    ++counts_[fmt::format("planned {}", short_of(precision))];
  }

  static std::string first_difference(const StateEntry* entry, const Session& session,
                                      const Tensor& want) {
    if (entry == nullptr) return ": the session does not have it";
    const Tensor got = session.state().get(*entry);
    for (int64_t i = 0; i < want.size(); ++i) {
      const double a = got.at_as_double(i), b = want.at_as_double(i);
      if (a != b) return fmt::format(" at {}: {}, node by node {}", i, a, b);
    }
    return " in the bits";
  }

  void judge_exact() {
    ByHand a(plain().training.at(0).graph), b(full().training.at(0).graph);
    const double want = a.step(inputs_of(problem_, a.graph()));
    const double got = b.step(inputs_of(problem_, b.graph()));
    if (want == got || (std::isnan(want) && std::isnan(got))) {
      ++counts_["exact"];
      return;
    }
    add("exact", fmt::format("loss {} with all passes, {} without", got, want));
  }

  Numbers run_in_f64() {
    const Graph& step = plain().training.at(0).graph;
    return WideStep(step).run(inputs_of(problem_, step));
  }

  /// The loss of the model as it grew, by no pass at all, against the number that f64 gives.
  void judge_forward(const Numbers& truth, const WideStep& wide, const std::vector<Tensor>& inputs,
                     const std::map<std::string, std::vector<double>>& most) {
    const Graph& forward = problem_.model.graph;
    if (!problem_.train.loss.empty() || !problem_.train.tied.empty() || draws(forward)) return;
    const Numbers want = {{"loss", truth.at("loss")}};
    const Numbers got = {{"loss", evaluate(forward, problem_.inputs)[0]}};
    if (!far(want, got, most, kSafety).empty()) {
      const Noise noise{problem_.seed, kSecondNoise, false};
      auto wider = spreads(wide, inputs, noise, kSecondRuns);
      const std::string words = very_far(want, got, wider);
      if (!words.empty()) return add("forward", words);
    }
    ++counts_["forward"];
  }

  static bool draws(const Graph& graph) {
    return std::ranges::any_of(graph.all_nodes(), [&](NodeId node) {
      const OperatorRow* row = find_operator(graph.node(node));
      return row != nullptr && row->purity == Purity::kRandom;
    });
  }

  static bool finite(const Numbers& numbers) {
    for (const auto& [name, tensor] : numbers) {
      for (int64_t i = 0; i < tensor.size(); ++i) {
        if (!std::isfinite(tensor.at_as_double(i))) return false;
      }
    }
    return true;
  }

  /// Where `got` is further from `want` than `allowed` says; empty if nowhere.
  static std::string far(const Numbers& want, const Numbers& got,
                         const std::map<std::string, std::vector<double>>& allowed, double factor) {
    for (const auto& [name, tensor] : want) {
      const auto found = got.find(name);
      double largest = 0;
      for (int64_t i = 0; i < tensor.size(); ++i) {
        largest = std::max(largest, std::abs(tensor.at_as_double(i)));
      }
      // Of a weight that only dead nodes of a body read, some passes see that it has no gradient.
      if (found == got.end() && largest == 0) continue;
      if (found == got.end()) return name + " is missing";
      if (found->second.shape() != tensor.shape()) return name + " has another shape";
      for (int64_t i = 0; i < tensor.size(); ++i) {
        const double a = found->second.at_as_double(i), b = tensor.at_as_double(i);
        const double most = factor * allowed.at(name)[static_cast<size_t>(i)] + kF64 * largest;
        if (std::abs(a - b) <= most + 1e-300) continue;
        return fmt::format("{} at {}: {}, in f64 {}, allowed {:.3e}, off {:.3e}", name, i, a, b,
                           most, std::abs(a - b));
      }
    }
    return {};
  }

  void judge_numbers(DType precision, const Numbers& truth) {
    const std::string name = short_of(precision);
    const Model model = precision == DType::kF32 ? full() : compiled(precision, false);
    const Graph& step = model.training.at(0).graph;
    const std::vector<Tensor> inputs = inputs_of(problem_, step);
    const WideStep wide(step);
    const Numbers exact = wide.run(inputs);
    if (!finite(truth) || !finite(exact)) {
      ++counts_["not finite in f64"];
      return;
    }
    judge_passes(name, wide, inputs, truth, exact);
    if (wide.largest_f16(inputs) > kMostF16) {
      ++counts_["overflow " + name];
      return;
    }
    Noise noise{problem_.seed, kNoise, false};
    auto most = spreads(wide, inputs, noise, kRuns);
    for (const std::string device : {"cpu", "cuda-emulated"}) {
      const std::string oracle = device == "cpu" ? name : kOnDevice + name;
      const std::optional<Numbers> got = numbers_on(device, model, inputs, exact, oracle);
      if (!got) continue;
      if (!far(truth, *got, most, kSafety).empty()) {
        if (noise.amount != kSecondNoise) {
          noise.amount = kSecondNoise;
          most = spreads(wide, inputs, noise, kSecondRuns);
        }
        ++counts_["second look " + oracle];
        const std::string words = very_far(truth, *got, most);
        if (!words.empty()) {
          add(oracle, words);
          continue;
        }
      }
      ++counts_["compared " + oracle];
    }
    if (precision == DType::kF32) judge_forward(truth, wide, inputs, most);
  }

  /// One step on the fastest kernels of a device; nothing, and a finding, where that is not finite,
  /// or where the device refuses what the CPU has run.
  std::optional<Numbers> numbers_on(const std::string& device, const Model& model,
                                    const std::vector<Tensor>& inputs, const Numbers& names,
                                    const std::string& oracle) {
    SessionOptions options;
    options.threads = 1;
    options.device = device;
    if (device == "cpu") return numbers_of(options, model, inputs, names, oracle);
    try {
      return numbers_of(options, model, inputs, names, oracle);
    } catch (const std::exception& error) {
      add(oracle, error.what());
      return std::nullopt;
    }
  }

  std::optional<Numbers> numbers_of(const SessionOptions& options, const Model& model,
                                    const std::vector<Tensor>& inputs, const Numbers& names,
                                    const std::string& oracle) {
    Session session(model, options);
    const StepResult result = session.step(inputs);
    if (!result.finite) {
      std::string place = "on the device";  // where single steps cannot be watched
      if (options.device == "cpu") {
        const std::optional<NonFinite> first = session.diagnose(inputs);
        place = first ? first->op + " " + first->node + ", " + first->value : "the second run is";
      }
      add(oracle, "not finite, though no value is near the type's end: " + place);
      return std::nullopt;
    }
    Numbers got;
    got["loss"] = Tensor::scalar(result.loss);
    for (const auto& [key, tensor] : names) {
      if (key != "loss") got[key] = session.output(key);
    }
    return got;
  }

  static std::map<std::string, std::vector<double>> none(const Numbers& numbers) {
    std::map<std::string, std::vector<double>> allowed;
    for (const auto& [name, tensor] : numbers) {
      allowed[name].assign(static_cast<size_t>(tensor.size()), 0);
    }
    return allowed;
  }

  void judge_passes(const std::string& name, const WideStep& wide,
                    const std::vector<Tensor>& inputs, const Numbers& truth, const Numbers& exact) {
    if (far(truth, exact, none(exact), kSafety).empty()) return;  // mostly: no need for noise
    Noise noise{problem_.seed, kNoise, true};
    if (far(truth, exact, spreads(wide, inputs, noise, kRuns), kSafety).empty()) return;
    noise.amount = kSecondNoise;
    auto most = spreads(wide, inputs, noise, kSecondRuns);
    const std::string words = very_far(truth, exact, most);
    if (!words.empty()) add("passes", name + ": " + words);
  }

  /// As far(); where that is a yes, what folding rounds is allowed for too, and added to `most`.
  /// The step after all passes does not show it: constants that cancel to 0 are a few ulp there.
  std::string very_far(const Numbers& want, const Numbers& got,
                       std::map<std::string, std::vector<double>>& most) {
    if (far(want, got, most, kSafety).empty()) return {};
    const Graph& step = plain().training.at(0).graph;
    const Noise noise{problem_.seed, kSecondNoise, true};
    const auto folded = spreads(WideStep(step), inputs_of(problem_, step), noise, kSecondRuns);
    for (auto& [name, numbers] : most) {
      const auto found = folded.find(name);
      if (found == folded.end() || found->second.size() != numbers.size()) continue;  // far() tells
      for (size_t i = 0; i < numbers.size(); ++i) numbers[i] += found->second.at(i);
    }
    return far(want, got, most, kSafety);
  }

  const Problem& problem_;
  Counts& counts_;
  std::string_view only_;
  std::vector<Finding> findings_;
  std::optional<Model> plain_, full_;
};

}  // namespace

bool untrained(const Error& error) {
  return error.code() == ErrorCode::kUsage ||
         error.problem().find("no parameter") != std::string::npos;
}

CompileOptions options_of(const Problem& problem, DType precision, bool with_optimizer) {
  CompileOptions options;
  options.train = problem.train;
  options.policy.dtype = precision;
  options.policy.scaler.init = 256.0f;
  if (!with_optimizer) {
    options.train.optimizer = {};
    options.train.optimizer.kind = "none";
  }
  return options;
}

std::vector<Finding> judge(const Problem& problem, Counts& counts, std::string_view only) {
  return Judge(problem, counts, only).run();
}

}  // namespace halfnote::random
