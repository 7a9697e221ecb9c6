#include "case_run.h"

#include <re2/re2.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "runtime/train/data/format/readers.h"

namespace halfnote::cases {
namespace {

namespace fs = std::filesystem;
using Arrays = std::map<std::string, Tensor>;

constexpr int kMaxScaleTries = 40;  // a scale of 2^16 can fall to 2^-24

Arrays read_arrays(const fs::path& file) {
  Arrays arrays;
  for (const DataField& field : read_npz(file.string())) arrays[field.name] = field.data;
  return arrays;
}

void set_optimizer(CompileOptions& options, const std::string& kind,
                   const nlohmann::json& settings) {
  Optimizer& o = options.train.optimizer;
  o.kind = kind;
  o.lr = settings.value("lr", o.lr);
  if (settings.contains("momentum")) o.momentum = settings.at("momentum").get<float>();
  o.beta1 = settings.value("beta1", o.beta1);
  if (settings.contains("beta2")) o.beta2 = settings.at("beta2").get<float>();
  if (settings.contains("eps")) o.epsilon = settings.at("eps").get<float>();
  o.weight_decay = settings.value("weight_decay", 0.0f);
}

/// The next step whose gradients are finite: a dynamic loss scale may need some to find its place.
StepResult finite_step(Session& session, std::span<const Tensor> inputs) {
  StepResult step = session.step(inputs);
  for (int i = 0; i < kMaxScaleTries && !step.finite; ++i) step = session.step(inputs);
  return step;
}

}  // namespace

Case read_case(const fs::path& folder) {
  Case c;
  c.json = nlohmann::json::parse(read_text(folder / "case.json", size_t{64} << 20));
  c.inputs = read_arrays(folder / "inputs.npz");
  c.expected = read_arrays(folder / "expected.npz");
  c.model = folder / "model.onnx";
  return c;
}

CompileOptions options_of(const Case& c, DType precision) {
  CompileOptions options;
  options.policy.dtype = precision;
  const nlohmann::json settings = c.json.value("compile", nlohmann::json::object());
  options.train.loss = settings.value("loss", "");
  options.train.loss_input = settings.value("loss_input", "");
  options.train.force_training = settings.value("force_training", false);
  options.dims = settings.value("dims", options.dims);
  if (options.train.loss.empty())
    options.train.loss_outputs = {c.json.at("loss_output").get<std::string>()};
  for (const auto& name : c.json.at("trainable")) {
    options.train.trainable.push_back(RE2::QuoteMeta(name.get<std::string>()));
  }
  options.train.optimizer.kind = "none";
  return options;
}

std::vector<Tensor> inputs_for(const Session& session, const Case& c) {
  std::vector<Tensor> inputs;
  for (const auto& [name, type] : session.inputs()) {
    const auto found = c.inputs.find(name);
    if (found == c.inputs.end())
      throw Error(ErrorCode::kData, "inputs.npz has no array \"" + name + "\"");
    inputs.push_back(found->second.cast_to(type.dtype));
  }
  return inputs;
}

StepRun run_step(const Case& c, DType precision) {
  Session session(compile_file(c.model, options_of(c, precision)).model, c.session);
  StepRun run;
  run.loss = finite_step(session, inputs_for(session, c)).loss;
  run.low_share = session.low_precision_share();
  for (const auto& json_name : c.json.at("trainable")) {
    const std::string name = json_name.get<std::string>();
    Tensor& gradient = run.gradients[name];
    try {
      gradient = session.output("grad/" + name);
    } catch (const Error&) {  // the loss does not depend on it
    }
  }
  return run;
}

Trajectories run_trajectories(const Case& c, DType precision) {
  Trajectories all;
  if (!c.json.contains("losses")) return all;
  for (const auto& [kind, wanted] : c.json["losses"].items()) {
    CompileOptions options = options_of(c, precision);
    set_optimizer(options, kind, c.json["optimizers"][kind]);
    Session session(compile_file(c.model, options).model, c.session);
    const std::vector<Tensor> inputs = inputs_for(session, c);
    for (size_t i = 0; i < wanted.size(); ++i)
      all[kind].push_back(finite_step(session, inputs).loss);
  }
  return all;
}

double torch_error(const Case& c, DType precision, const std::string& key,
                   const std::string& inner) {
  const char* name = precision == DType::kF32    ? "fp32"
                     : precision == DType::kBF16 ? "bf16"
                                                 : "fp16";
  if (!c.json.contains("torch_error") || !c.json["torch_error"].contains(name)) return 0;
  const nlohmann::json& errors = c.json["torch_error"][name];
  if (!errors.contains(key)) return 0;
  const nlohmann::json& value =
      inner.empty() ? errors[key] : errors[key].value(inner, nlohmann::json(0.0));
  return value.is_number() ? value.get<double>() : 0;
}

double relative_error(double got, double wanted) {
  const double error = std::fabs(got - wanted) / std::max(std::fabs(wanted), 1e-30);
  return std::isfinite(error) ? error : INFINITY;
}

}  // namespace halfnote::cases
