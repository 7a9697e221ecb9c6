#include "tests/random/emit.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "compiler/onnx/export.h"
#include "passes/device/emit_step.h"
#include "runtime/train/session.h"
#include "tests/random/judge.h"
#include "tests/random/wide.h"

namespace halfnote::random {
namespace {

using EmitJson = nlohmann::ordered_json;

constexpr int kEmitRuns = 16;
constexpr double kEmitNoise = 16;  // as the second look of judge.cc: there is none here

EmitJson numbers_of(const Tensor& tensor) {
  EmitJson json = EmitJson::array();
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const double x = tensor.at_as_double(i);
    if (!std::isfinite(x)) throw Error(ErrorCode::kNumerics, "not finite");
    json.push_back(x);
  }
  return json;
}

EmitJson described(const Tensor& tensor) {
  return {{"dtype", short_name(tensor.dtype())},
          {"shape", tensor.shape()},
          {"data", numbers_of(tensor)}};
}

void emit_one(const Problem& problem, DType precision, const std::filesystem::path& stem) {
  const Model model = compile_model(problem.model, options_of(problem, precision, false)).model;
  const Graph& step = model.training.at(0).graph;
  const std::vector<Tensor> inputs = inputs_of(problem, step);
  const WideStep wide(step);
  const auto allowed = spreads(wide, inputs, {problem.seed, kEmitNoise, false}, kEmitRuns);
  EmitJson json;
  for (size_t i = 0; i < inputs.size(); ++i) {
    json["inputs"][step.value(step.inputs()[i]).name] = described(inputs[i]);
  }
  for (const State& state : step.states()) {
    const Value& value = step.value(state.current);
    json["inputs"][value.name] = described(value.tensor);
  }
  json["loss"] = step.value(step.outputs()[0]).name;
  for (const auto& [name, tensor] : wide.run(inputs)) {
    EmitJson& entry = json["results"][name] = described(tensor);
    entry["allowed"] = EmitJson::array();
    for (double x : allowed.at(name)) {
      if (!std::isfinite(x)) return;
      entry["allowed"].push_back(kSafety * x);
    }
  }
  const Emulation emulation = precision == DType::kF32 ? Emulation::kNone : Emulation::k16Bit;
  const std::vector<std::byte> bytes = export_model_bytes(emit_step(model, "step", emulation));
  const std::span<const std::byte> part = bytes;
  write_file_atomic(stem.string() + ".onnx", std::span(&part, 1));
  write_file_atomic(stem.string() + ".json", json.dump() + "\n");
}

}  // namespace

void emit(const Problem& problem, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (DType precision : {DType::kF32, DType::kBF16}) {
    const auto stem = folder / fmt::format("{:08}-{}", problem.seed, short_name(precision));
    try {
      emit_one(problem, precision, stem);
    } catch (const Error& error) {
      // What cannot be compiled is for judge(), what is not finite for nobody.
      const bool skipped = error.code() == ErrorCode::kUnsupported ||
                           error.code() == ErrorCode::kNumerics || untrained(error);
      if (!skipped) throw;
    }
  }
}

}  // namespace halfnote::random
