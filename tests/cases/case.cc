#include "case.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "runtime/train/data/format/readers.h"
#include "runtime/train/session.h"

namespace halfnote::cases {
namespace {

namespace fs = std::filesystem;
using Arrays = std::map<std::string, Tensor>;

// Of the norm of all gradients: what joins a tensor's own norm in the printed error, and what its
// error may always be.
constexpr double kShareOfAll = 1e-2, kAllowanceOfAll = 1e-6;

constexpr int kMaxScaleTries = 40;  // a scale of 2^16 can fall to 2^-24

struct Case {
  nlohmann::json json;
  Arrays inputs, expected;
  fs::path model;
  SessionOptions session;
};

Arrays read_arrays(const fs::path& file) {
  Arrays arrays;
  for (const DataField& field : read_npz(file.string())) arrays[field.name] = field.data;
  return arrays;
}

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

/// The arrays of inputs.npz in the order of the step's inputs.
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

double relative(double got, double want) {
  const double scale = std::max(std::fabs(want), 1e-30);
  return std::isfinite(got) ? std::fabs(got - want) / scale : INFINITY;
}

/// A number from `torch_error`, by path; 0 where it is not given.
double torch_error(const Case& c, DType precision, const std::string& key,
                   const std::string& inner = {}) {
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

struct GradientSums {
  double dot = 0, got2 = 0, want2 = 0;
};

void compare_gradients(const Case& c, const Session& session, CaseResult& result) {
  GradientSums all;
  for (const auto& json_name : c.json.at("trainable")) {
    const std::string name = json_name.get<std::string>();
    const Tensor& want = c.expected.at("grad/" + name);
    Tensor got;
    try {
      got = session.output("grad/" + name);
    } catch (const Error&) {
      got = Tensor(DType::kF32, want.shape());  // the loss does not depend on it: zero
    }
    if (got.shape() != want.shape()) {
      throw Error(ErrorCode::kAccuracy, "gradient of \"" + name + "\" has another shape")
          .expected(to_string(std::span<const int64_t>(want.shape())),
                    to_string(std::span<const int64_t>(got.shape())));
    }
    double error2 = 0, norm2 = 0;
    for (int64_t i = 0; i < want.size(); ++i) {
      const double x = got.at_as_double(i), y = want.at_as_double(i);
      error2 += (x - y) * (x - y);
      norm2 += y * y;
      all.dot += x * y;
      all.got2 += x * x;
      all.want2 += y * y;
    }
    result.gradients.push_back({name, std::sqrt(error2), std::sqrt(norm2)});
  }
  result.cosine = all.dot / std::max(std::sqrt(all.got2 * all.want2), 1e-300);
  result.gradient_norm = std::sqrt(all.want2);
  for (const TensorGradient& g : result.gradients) {
    const double unit = std::max(g.norm + kShareOfAll * result.gradient_norm, 1e-300);
    const double error = std::isfinite(g.error) ? g.error / unit : INFINITY;
    result.gradient_error = std::max(result.gradient_error, error);
  }
}

void measure_step(const Case& c, DType precision, CaseResult& result) {
  CompileResult compiled = compile_file(c.model, options_of(c, precision));
  Session session(std::move(compiled.model), c.session);
  const std::vector<Tensor> inputs = inputs_for(session, c);
  StepResult step = session.step(inputs);
  // A dynamic loss scale may need some steps to find its place.
  for (int i = 0; i < kMaxScaleTries && !step.finite; ++i) step = session.step(inputs);
  result.loss_error = relative(step.loss, c.json.at("loss").get<double>());
  result.low_share = session.low_precision_share();
  compare_gradients(c, session, result);
}

void measure_trajectories(const Case& c, DType precision, CaseResult& result) {
  if (!c.json.contains("losses")) return;
  for (const auto& [kind, losses] : c.json["losses"].items()) {
    CompileOptions options = options_of(c, precision);
    set_optimizer(options, kind, c.json["optimizers"][kind]);
    Session session(compile_file(c.model, options).model, c.session);
    const std::vector<Tensor> inputs = inputs_for(session, c);
    double worst = 0;
    for (const auto& want : losses) {
      StepResult step = session.step(inputs);
      for (int i = 0; i < kMaxScaleTries && !step.finite; ++i) step = session.step(inputs);
      worst = std::max(worst, relative(step.loss, want.get<double>()));
    }
    result.trajectory_errors[kind] = worst;
  }
}

void set_bars(const Case& c, DType precision, CaseResult& r) {
  if (precision == DType::kF32) {
    r.loss_bar = std::max(1e-5, 3 * torch_error(c, precision, "loss"));
    r.gradient_bar = std::max(1e-4, 3 * torch_error(c, precision, "grad"));
    r.cosine_bar = -1;
    for (const auto& [kind, error] : r.trajectory_errors) {
      r.trajectory_bars[kind] = std::max(1e-4, 3 * torch_error(c, precision, "trajectory", kind));
    }
    return;
  }
  const bool bf16 = precision == DType::kBF16;
  r.loss_bar = bf16 ? 0.02 : 0.005;
  r.gradient_bar = INFINITY;
  const double torch_cosine = torch_error(c, precision, "cosine");
  r.cosine_bar = bf16 ? 0.99 : 0.999;
  if (torch_cosine != 0) r.cosine_bar = std::min(r.cosine_bar, 1 - 2 * (1 - torch_cosine));
  r.low_share_bar = c.json.value("min_16bit_share", 0.95);
}

/// The tensor that is furthest over its allowance, if one is.
void judge_gradients(CaseResult& r) {
  if (std::isinf(r.gradient_bar)) return;  // the cosine judges 16 bit
  const TensorGradient* worst = nullptr;
  double worst_share = 1, worst_allowed = 0;
  for (const TensorGradient& g : r.gradients) {
    const double allowed = r.gradient_bar * g.norm + kAllowanceOfAll * r.gradient_norm;
    if (g.error <= allowed) continue;  // no NaN
    const double share = std::isfinite(g.error) ? g.error / std::max(allowed, 1e-300) : INFINITY;
    if (share < worst_share) continue;
    worst = &g;
    worst_share = share;
    worst_allowed = allowed;
  }
  if (worst == nullptr) return;
  r.failures.push_back(fmt::format("gradient of {}: error {:.1e} > {:.1e} (norm {:.1e})",
                                   worst->name, worst->error, worst_allowed, worst->norm));
}

void judge(CaseResult& r) {
  if (!(r.loss_error <= r.loss_bar))
    r.failures.push_back(fmt::format("loss {:.1e} > {:.1e}", r.loss_error, r.loss_bar));
  judge_gradients(r);
  if (!(r.cosine >= r.cosine_bar))
    r.failures.push_back(fmt::format("cosine {:.6f} < {:.6f}", r.cosine, r.cosine_bar));
  for (const auto& [kind, bar] : r.trajectory_bars) {
    if (!(r.trajectory_errors[kind] <= bar)) {
      r.failures.push_back(
          fmt::format("{} trajectory {:.1e} > {:.1e}", kind, r.trajectory_errors[kind], bar));
    }
  }
  if (!(r.low_share >= r.low_share_bar)) {
    r.failures.push_back(fmt::format("16-bit share {:.3f} < {:.2f}", r.low_share, r.low_share_bar));
  }
}

/// A case that must be refused: with this exit code, and a message that holds this text.
CaseResult expect_refusal(const Case& c, DType precision) {
  const nlohmann::json& want = c.json["refused"];
  CaseResult result;
  try {
    compile_file(c.model, options_of(c, precision));
    result.failures.push_back("compiled, although it must be refused");
  } catch (const Error& error) {
    result.refusal = error.what();
    const std::string text = want.at("message").get<std::string>();
    if (error.exit_code() != want.at("exit_code").get<int>() ||
        result.refusal.find(text) == std::string::npos) {
      result.failures.push_back(
          fmt::format("refused otherwise: exit code {}, {}", error.exit_code(), result.refusal));
    }
  }
  return result;
}

}  // namespace

CaseResult run_case(const fs::path& folder, DType precision, const std::string& kernels,
                    const std::string& device) {
  Case c = read_case(folder);
  c.session.kernels = kernels;
  c.session.device = device;
  if (c.json.contains("refused")) return expect_refusal(c, precision);
  CaseResult result;
  measure_step(c, precision, result);
  measure_trajectories(c, precision, result);
  set_bars(c, precision, result);
  judge(result);
  return result;
}

std::string describe(const std::string& name, const CaseResult& r) {
  if (!r.refusal.empty() && r.failures.empty()) {
    return fmt::format("{:<28} refused, as it must be: {}  pass", name, r.refusal);
  }
  std::string line = fmt::format("{:<28} loss {:.1e}  grad {:.1e}  cos {:.8f}", name, r.loss_error,
                                 r.gradient_error, r.cosine);
  for (const auto& [kind, error] : r.trajectory_errors)
    line += fmt::format("  {} {:.1e}", kind, error);
  line += fmt::format("  16-bit {:.1f} %  ", 100 * r.low_share);
  if (r.failures.empty()) return line + "pass";
  line += "FAIL: ";
  for (size_t i = 0; i < r.failures.size(); ++i) line += (i == 0 ? "" : "; ") + r.failures[i];
  return line;
}

}  // namespace halfnote::cases
