// halfnote-steps ARTIFACT INPUTS.npz THREADS [DEVICE [tf32] [tune[=PLAN.json]]]: training steps on
// one batch, timed, on request. With tune, kernels and algorithms are measured first, as by `run
// --tune`; what stands in the plan file is not measured again, and what is measured goes there.
//
// For programs that compare it with something else by turns (bench/pytorch). It prints a line of
// JSON when it is ready (memory that is planned, FLOPs and bytes of the operands of a step, on the
// CPU the machine's peak), then one for each line on its input:
//
//   N                  the seconds and losses of N steps; on a device, where the batch stays and
//   two
//                      steps are on their way at a time, one number: the seconds of all over N
//   floor GFLOPS GBPS  the least seconds of a step on a machine that reaches so much (rates.h)
//   start              nothing, but the states are those from before the first step
//
// It ends with its input.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "bench/rates.h"
#include "compiler/onnx/import.h"
#include "runtime/core/profile/peak.h"
#include "runtime/core/tune/kernel_choices.h"
#include "runtime/train/data/batch_file.h"
#include "runtime/train/session.h"

namespace {

using namespace halfnote;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

int parse_count(std::string_view text, std::string_view what) {
  int count = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (code == std::errc() && end == text.data() + text.size() && count >= 1) return count;
  throw Error(ErrorCode::kUsage, "bad " + std::string(what))
      .expected("at least 1", "\"" + std::string(text) + "\"");
}

double flops_of(const Session& session) {
  double flops = 0;
  for (const ProgramStep& step : session.program("step")->steps) flops += step.flops;
  return flops;
}

double bytes_of(const Session& session) {
  double bytes = 0;
  for (const ProgramStep& step : session.program("step")->steps) bytes += moved_bytes(step);
  return bytes;
}

/// Convolutions that a device does by plain loops, far from what cuDNN does.
int64_t plain_convolutions(const Session& session) {
  return std::ranges::count_if(session.program("step")->steps, [](const ProgramStep& step) {
    return step.row != nullptr && step.row->name == "own.conv";
  });
}

Json ready(const Session& session, int threads) {
  Json json = {{"memory", session.memory().total()},
               {"flops", flops_of(session)},
               {"bytes", bytes_of(session)},
               {"low_share", session.low_precision_share()},
               {"plain_convolutions", plain_convolutions(session)}};
  if (session.on_device()) {
    json["device"] = session.device_description();
    return json;
  }
  const MachinePeak peak = measure_peak(threads);
  json["f32_peak"] = peak.f32_flops;
  json["bf16_peak"] = peak.bf16_flops;
  json["memory_peak"] = peak.bytes;
  return json;
}

/// Two steps are on their way at a time; the clock stops when the last one has ended.
Json steps_on_device(Session& session, const std::vector<Tensor>& inputs, int count) {
  Json losses = Json::array();
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < count; ++i) {
    if (session.in_flight() == session.most_in_flight()) losses.push_back(session.finish().loss);
    session.start(inputs);
  }
  while (session.in_flight() > 0) losses.push_back(session.finish().loss);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return {{"seconds", {seconds / count}}, {"losses", losses}};
}

Json timed_steps(Session& session, const std::vector<Tensor>& inputs, int count) {
  if (session.on_device()) return steps_on_device(session, inputs, count);
  Json json = {{"seconds", Json::array()}, {"losses", Json::array()}};
  for (int i = 0; i < count; ++i) {
    const Clock::time_point begin = Clock::now();
    const StepResult result = session.step(inputs);
    json["seconds"].push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    json["losses"].push_back(result.loss);
  }
  return json;
}

double number(std::string_view text) {
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code == std::errc() && end == text.data() + text.size() && value > 0) return value;
  throw Error(ErrorCode::kUsage, "bad rate")
      .expected("more than 0", "\"" + std::string(text) + "\"");
}

/// Of `GFLOPS GBPS`.
Json floor(const Session& session, std::string_view rates) {
  const size_t space = rates.find(' ');
  const Rates given = {1e9 * number(rates.substr(0, space)),
                       1e9 * number(rates.substr(std::min(space + 1, rates.size())))};
  double seconds = 0;
  for (const ProgramStep& step : session.program("step")->steps) seconds += given.seconds(step);
  return {{"floor", seconds}};
}

std::vector<Tensor> states_of(const Session& session) {
  std::vector<Tensor> states;
  for (const StateEntry& entry : session.state().entries())
    states.push_back(session.state().get(entry));
  return states;
}

Json start_again(Session& session, const std::vector<Tensor>& states) {
  for (size_t i = 0; i < states.size(); ++i)
    session.state().set(session.state().entries()[i], states[i]);
  return Json::object();
}

Json answer(Session& session, const std::vector<Tensor>& inputs, const std::vector<Tensor>& states,
            std::string_view line) {
  constexpr std::string_view kFloor = "floor ";
  if (line == "start") return start_again(session, states);
  if (line.starts_with(kFloor)) return floor(session, line.substr(kFloor.size()));
  return timed_steps(session, inputs, parse_count(line, "number of steps"));
}

/// What the file has, if there is one, and it gets whatever is measured: to be ended loses nothing.
KernelChoices choices_of(const std::string& device, int threads, const std::string& plan) {
  constexpr size_t kMostBytes = size_t{64} << 20;
  const std::unique_ptr<Device> opened = open_device(device);
  const TunedMachine machine = opened ? machine_of(*opened) : this_machine(threads);
  if (plan.empty()) return KernelChoices(machine);
  const KernelTable& table = opened ? opened->kernels() : cpu_kernels();
  KernelChoices choices =
      std::filesystem::exists(plan)
          ? KernelChoices::parse(read_text(plan, kMostBytes), plan, machine, table)
          : KernelChoices(machine);
  choices.on_measured([plan](const KernelChoices& all) { write_file_atomic(plan, all.to_json()); });
  return choices;
}

struct Tuning {
  bool on = false;
  std::string plan;  // empty: no file
};

void serve(const std::string& artifact, const std::string& data, int threads,
           const std::string& device, bool tf32, const Tuning& tuning) {
  SessionOptions options;
  KernelChoices choices = choices_of(device, threads, tuning.plan);
  if (tuning.on) options.choices = &choices;
  options.tune = tuning.on;
  options.keep_inputs = device != "cpu";
  options.keep_types = true;
  options.device = device;
  options.tf32 = tf32;
  options.threads = threads;
  Session session(import_model(artifact, {}), options);
  const std::vector<Tensor> inputs = read_batch(session, data);
  std::vector<Shape> shapes;
  for (const Tensor& input : inputs) shapes.push_back(input.shape());
  session.prepare(shapes);
  std::cout << ready(session, threads).dump() << std::endl;
  const std::vector<Tensor> states = states_of(session);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer(session, inputs, states, line).dump() << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  constexpr std::string_view kTune = "tune", kPlan = "tune=";
  bool tf32 = false, known = argc >= 4;
  Tuning tuning;
  for (int i = 5; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool names_plan = word.starts_with(kPlan) && word.size() > kPlan.size();
    tf32 |= word == "tf32";
    tuning.on |= word == kTune || names_plan;
    if (names_plan) tuning.plan = word.substr(kPlan.size());
    known = known && (word == "tf32" || word == kTune || names_plan);
  }
  if (!known) {
    std::cerr << "usage: halfnote-steps ARTIFACT INPUTS.npz THREADS "
                 "[DEVICE [tf32] [tune[=PLAN.json]]]\n";
    return static_cast<int>(ErrorCode::kUsage);
  }
  try {
    serve(argv[1], argv[2], parse_count(argv[3], "number of threads"), argc > 4 ? argv[4] : "cpu",
          tf32, tuning);
  } catch (const Error& error) {
    std::cerr << "halfnote-steps: " << error.what() << "\n";
    return static_cast<int>(error.code());
  }
}
