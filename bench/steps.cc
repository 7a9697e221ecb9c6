// halfnote-steps ARTIFACT INPUTS.npz THREADS [DEVICE]: training steps on one batch, timed, on
// request.
//
// For programs that compare it with something else by turns (bench/pytorch/compare.py). It prints a
// line of JSON when it is ready (memory that is planned, the machine's peak), then for each line
// `N` on its input one with the seconds and losses of N steps. It ends with its input.
#include <charconv>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "compiler/onnx/import.h"
#include "runtime/core/profile/peak.h"
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

Json ready(const Session& session, int threads) {
  const MachinePeak peak = measure_peak(threads);
  return {{"memory", session.memory().total()}, {"flops", flops_of(session)},
          {"f32_peak", peak.f32_flops},         {"bf16_peak", peak.bf16_flops},
          {"memory_peak", peak.bytes},          {"low_share", session.low_precision_share()}};
}

Json timed_steps(Session& session, const std::vector<Tensor>& inputs, int count) {
  Json json = {{"seconds", Json::array()}, {"losses", Json::array()}};
  for (int i = 0; i < count; ++i) {
    const Clock::time_point begin = Clock::now();
    const StepResult result = session.step(inputs);
    json["seconds"].push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    json["losses"].push_back(result.loss);
  }
  return json;
}

void serve(const std::string& artifact, const std::string& data, int threads,
           const std::string& device, bool tf32) {
  SessionOptions options;
  options.device = device;
  options.tf32 = tf32;
  options.threads = threads;
  Session session(import_model(artifact, {}), options);
  const std::vector<Tensor> inputs = read_batch(session, data);
  std::vector<Shape> shapes;
  for (const Tensor& input : inputs) shapes.push_back(input.shape());
  session.prepare(shapes);
  std::cout << ready(session, threads).dump() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << timed_steps(session, inputs, parse_count(line, "number of steps")).dump()
              << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool tf32 = argc == 6 && std::string_view(argv[5]) == "tf32";
  if (argc < 4 || argc > 6 || (argc == 6 && !tf32)) {
    std::cerr << "usage: halfnote-steps ARTIFACT INPUTS.npz THREADS [DEVICE [tf32]]\n";
    return static_cast<int>(ErrorCode::kUsage);
  }
  try {
    serve(argv[1], argv[2], parse_count(argv[3], "number of threads"), argc > 4 ? argv[4] : "cpu",
          tf32);
  } catch (const Error& error) {
    std::cerr << "halfnote-steps: " << error.what() << "\n";
    return static_cast<int>(error.code());
  }
}
