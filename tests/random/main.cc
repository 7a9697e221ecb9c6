// halfnote-random [--seed N] [--count N]: random training problems held against several oracles
// (judge.h). A finding is shrunk and printed with its seed as ONNX text. Ends with 1 if there is
// one. `--model FILE` judges a model of such text instead.
#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <iostream>

#include "base/error.h"
#include "base/file.h"
#include "compiler/ir/text.h"
#include "compiler/ops/operator.h"
#include "tests/random/dice.h"
#include "tests/random/emit.h"
#include "tests/random/hostile.h"
#include "tests/random/judge.h"
#include "tests/random/shrink.h"

namespace {

using namespace halfnote;

using Clock = std::chrono::steady_clock;

constexpr size_t kLongestModel = size_t{1} << 20;
constexpr std::chrono::minutes kLongestShrinking{2};

struct Settings {
  uint64_t seed = 1;
  int64_t count = 400, most_findings = 20;
  std::string emit;
  std::vector<std::string> models;
  bool print = false, shrinks = true, judges = true, lists_lacking = false, hostile = false;
};

std::string describe(const random::Problem& problem) {
  const TrainOptions& train = problem.train;
  std::string text = "optimizer " + train.optimizer.kind;
  if (!train.loss.empty()) text += ", loss " + train.loss;
  if (!train.tied.empty()) text += ", tied " + train.tied[0];
  return text + "\n" + print(problem.model);
}

void report(const random::Problem& problem, const random::Finding& finding, bool shrinks) {
  std::cout << fmt::format("seed {}: {}: {}\n", problem.seed, finding.oracle, finding.words)
            << std::flush;
  if (!shrinks) return;
  std::string words = finding.words;
  const Clock::time_point end = Clock::now() + kLongestShrinking;
  const auto shows = [&](const random::Problem& smaller) {
    if (Clock::now() > end) return false;
    random::Counts ignored;
    for (const random::Finding& found : random::judge(smaller, ignored, finding.oracle)) {
      if (found.oracle != finding.oracle) continue;
      words = found.words;
      return true;
    }
    return false;
  };
  const random::Problem smallest = random::shrink(problem, shows);
  if (Clock::now() > end) std::cout << "shrinking ended early: it took too long\n";
  std::cout << "shrunk: " << words << "\n" << describe(smallest) << std::endl;
}

int64_t judge_one(const random::Problem& problem, random::Counts& counts, bool shrinks) {
  const std::vector<random::Finding> findings = random::judge(problem, counts);
  for (const random::Finding& finding : findings) report(problem, finding, shrinks);
  return static_cast<int64_t>(findings.size());
}

/// ONNX's operators through which a gradient goes, and that no problem had.
void list_lacking(const random::Counts& counts) {
  for (const OperatorRow& row : operator_rows()) {
    const bool trains = row.gradient != nullptr || row.lower != nullptr;
    if (!row.domain.empty() || !trains || row.draw != nullptr) continue;
    if (!counts.contains("op " + std::string(row.name)))
      std::cout << "lacking " << row.name << "\n";
  }
}

/// The model of a file, its loss named `loss`, its parameters w0, w1, …; labels of 0, other inputs
/// between -1 and 1.
random::Problem read_problem(const std::string& path) {
  random::Problem problem;
  problem.model = parse_model(read_text(path, kLongestModel), path);
  problem.train.trainable = {"w[0-9]+"};
  problem.train.optimizer.kind = "sgd";
  problem.train.loss_outputs = {"loss"};
  uint64_t state = 0;
  for (ValueId id : problem.model.graph.inputs()) {
    const ValueType& type = problem.model.graph.value(id).type;
    Tensor tensor(DType::kF32, concrete(type.shape.value()));
    for (float& x : tensor.mutable_data<float>()) {
      state = random::mix(state);
      x = is_float(type.dtype) ? static_cast<float>(state >> 40) * 0x1p-23f - 1.0f : 0.0f;
    }
    problem.inputs.push_back(tensor.cast_to(type.dtype));
  }
  return problem;
}

int judge_models(const Settings& settings) {
  random::Counts counts;
  int64_t found = 0;
  for (const std::string& path : settings.models) {
    std::cout << path << std::endl;
    found += judge_one(read_problem(path), counts, settings.shrinks);
  }
  for (const auto& [what, count] : counts) std::cout << fmt::format("{:>8} {}\n", count, what);
  return found == 0 ? 0 : 1;
}

int run(const Settings& settings) {
  const Clock::time_point begin = Clock::now();
  random::Counts counts;
  int64_t found = 0, nodes = 0;
  for (int64_t i = 0; i < settings.count && found < settings.most_findings; ++i) {
    const random::Problem problem =
        random::random_problem(settings.seed + static_cast<uint64_t>(i));
    nodes += problem.model.graph.node_count();
    if (settings.print) std::cout << describe(problem) << std::endl;
    if (settings.hostile) random::attack(problem, problem.seed, counts);
    if (settings.judges && !settings.hostile) found += judge_one(problem, counts, settings.shrinks);
    if (!settings.emit.empty()) random::emit(problem, settings.emit);
    for (NodeId id : problem.model.graph.all_nodes()) {
      ++counts["op " + problem.model.graph.node(id).op];
    }
  }
  for (const auto& [what, count] : counts) std::cout << fmt::format("{:>8} {}\n", count, what);
  if (settings.lists_lacking) list_lacking(counts);
  std::cout << fmt::format("{} problems from seed {}, {} nodes, {} findings, {:.1f} s\n",
                           settings.count, settings.seed, nodes, found,
                           std::chrono::duration<double>(Clock::now() - begin).count());
  return found == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"holds random training problems against several oracles (tests/random/judge.h)",
               "halfnote-random"};
  Settings settings;
  app.add_option("--seed", settings.seed, "of the first problem (default: 1)");
  app.add_option("--count", settings.count, "problems (default: 400)");
  app.add_option("--findings", settings.most_findings, "stop after so many (default: 20)");
  app.add_option("--emit", settings.emit,
                 "folder for emitted steps, their inputs and allowed results "
                 "(tests/judges/judge_random.py)");
  app.add_option("--model", settings.models, "judge the models of these files instead (ONNX text)")
      ->check(CLI::ExistingFile);
  app.add_flag("!--emit-only", settings.judges, "leave the judging to others");
  app.add_flag("--hostile", settings.hostile,
               "no judging: run nodes with one operand or attribute changed, as a file may hold "
               "them, in buffers with nothing behind them");
  app.add_flag("--lacking", settings.lists_lacking,
               "name the operators with a gradient that no problem had");
  app.add_flag("--print", settings.print, "print every problem");
  app.add_flag("!--no-shrink", settings.shrinks, "print findings as they are");
  CLI11_PARSE(app, argc, argv);
  try {
    return settings.models.empty() ? run(settings) : judge_models(settings);
  } catch (const Error& error) {
    std::cerr << "halfnote-random: " << error.what() << "\n";
    return error.exit_code();
  }
}
