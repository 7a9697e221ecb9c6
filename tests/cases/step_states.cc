// halfnote-step ARTIFACT INPUTS.npz K FOLDER [DEVICE]: runs K training steps on one batch and
// writes what became of the states, for tests/judges/judge_step.py and scripts/gpu_check.sh.
// FOLDER/steps.json holds, for each step, loss, finite and applied, and the name, type, shape and
// byte offset of every state; FOLDER/step-N.bin (N from 1) the states after step N, one after the
// other.
#include <charconv>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "compiler/onnx/import.h"
#include "runtime/train/data/batch_file.h"
#include "runtime/train/session.h"

namespace {

namespace fs = std::filesystem;
using namespace halfnote;

constexpr int kMaxSteps = 1000;

nlohmann::ordered_json describe_states(const StateStore& store) {
  auto states = nlohmann::ordered_json::array();
  size_t offset = 0;
  for (const StateEntry& entry : store.entries()) {
    states.push_back({{"name", entry.name},
                      {"dtype", short_name(entry.dtype)},
                      {"shape", entry.shape},
                      {"offset", offset}});
    offset += store.get(entry).byte_size();
  }
  return states;
}

void write_states(const StateStore& store, const fs::path& file) {
  std::vector<Tensor> tensors;
  std::vector<std::span<const std::byte>> parts;
  for (const StateEntry& entry : store.entries()) tensors.push_back(store.get(entry));
  for (const Tensor& tensor : tensors) parts.emplace_back(tensor.bytes(), tensor.byte_size());
  write_file_atomic(file, parts);
}

int parse_steps(std::string_view text) {
  int steps = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), steps);
  if (code != std::errc() || end != text.data() + text.size() || steps < 1 || steps > kMaxSteps) {
    throw Error(ErrorCode::kUsage, "bad number of steps")
        .expected("1 to " + std::to_string(kMaxSteps), "\"" + std::string(text) + "\"");
  }
  return steps;
}

void run(const std::string& artifact, const std::string& data, int steps, const fs::path& folder,
         const std::string& device) {
  SessionOptions options;
  options.device = device;
  Session session(import_model(artifact, {}), options);
  const std::vector<Tensor> inputs = read_batch(session, data);
  fs::create_directories(folder);
  nlohmann::ordered_json json;
  json["steps"] = nlohmann::ordered_json::array();
  for (int i = 1; i <= steps; ++i) {
    const StepResult result = session.step(inputs);
    json["steps"].push_back(
        {{"loss", result.loss}, {"finite", result.finite}, {"applied", result.applied}});
    write_states(session.state(), folder / ("step-" + std::to_string(i) + ".bin"));
  }
  json["states"] = describe_states(session.state());
  write_file_atomic(folder / "steps.json", json.dump(1) + "\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 && argc != 6) {
    std::cerr << "usage: halfnote-step ARTIFACT INPUTS.npz STEPS FOLDER [DEVICE]\n";
    return static_cast<int>(ErrorCode::kUsage);
  }
  try {
    run(argv[1], argv[2], parse_steps(argv[3]), argv[4], argc == 6 ? argv[5] : "cpu");
    return 0;
  } catch (const Error& error) {
    std::cerr << "halfnote-step: " << error.what() << "\n";
    return error.exit_code();
  } catch (const std::exception& error) {
    std::cerr << "halfnote-step: " << error.what() << "\n";
    return static_cast<int>(ErrorCode::kInternal);
  }
}
