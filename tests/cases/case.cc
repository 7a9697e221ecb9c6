#include "case.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "case_run.h"

namespace halfnote::cases {
namespace {

namespace fs = std::filesystem;

// Of the norm of all gradients: what joins a tensor's own norm in the printed error, and what its
// error may always be.
constexpr double kShareOfAll = 1e-2, kAllowanceOfAll = 1e-6;

struct GradientSums {
  double dot = 0, got2 = 0, want2 = 0;
};

void compare_gradients(const Case& c, const StepRun& run, CaseResult& result) {
  GradientSums all;
  for (const auto& [name, gradient] : run.gradients) {
    const Tensor& want = c.expected.at("grad/" + name);
    const Tensor got = gradient.defined() ? gradient : Tensor(DType::kF32, want.shape());
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

void compare_trajectories(const Case& c, const Trajectories& trajectories, CaseResult& result) {
  for (const auto& [kind, losses] : trajectories) {
    double& worst = result.trajectory_errors[kind];
    for (size_t i = 0; i < losses.size(); ++i)
      worst = std::max(worst, relative_error(losses[i], c.json["losses"][kind][i].get<double>()));
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
  if (r.beside_cpu) r.failures = r.beside_cpu->failures;
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
  const StepRun step = run_step(c, precision);
  const Trajectories trajectories = run_trajectories(c, precision);
  result.loss_error = relative_error(step.loss, c.json.at("loss").get<double>());
  result.low_share = step.low_share;
  compare_gradients(c, step, result);
  compare_trajectories(c, trajectories, result);
  if (precision == DType::kF32 && device != "cpu")
    result.beside_cpu = compare_with_cpu(c, step, trajectories);
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
  if (r.beside_cpu) line += fmt::format("  cpu {:.1e}", r.beside_cpu->worst());
  line += fmt::format("  16-bit {:.1f} %  ", 100 * r.low_share);
  if (r.failures.empty()) return line + "pass";
  line += "FAIL: ";
  for (size_t i = 0; i < r.failures.size(); ++i) line += (i == 0 ? "" : "; ") + r.failures[i];
  return line;
}

}  // namespace halfnote::cases
