#include "beside_cpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace halfnote::cases {
namespace {

constexpr double kBar = 1e-5;
// Of the norm of all gradients: a tensor whose own is less is held against this much. The gradient
// of a bias before a normalization is rounding alone, up to 3e-8 of all.
constexpr double kLeastShare = 1e-2;

struct Norms {
  double error = 0, norm = 0;
};

Norms norms_of(const Tensor& got, const Tensor& wanted) {
  Norms norms;
  for (int64_t i = 0; i < wanted.size(); ++i) {
    norms.norm = std::hypot(norms.norm, wanted.at_as_double(i));
    norms.error = std::hypot(norms.error, got.at_as_double(i) - wanted.at_as_double(i));
  }
  return norms;
}

/// What may be missed: where PyTorch in f32 misses more, three times that, as everywhere.
double bar_of(const Case& c, const std::string& key, const std::string& inner = {}) {
  return std::max(kBar, 3 * torch_error(c, DType::kF32, key, inner));
}

void judge(const std::string& what, double error, double bar, BesideCpu& result) {
  if (error <= bar) return;  // no NaN
  result.failures.push_back(fmt::format("{} beside the CPU's: {:.1e} > {:.1e}", what, error, bar));
}

void compare_gradients(const Case& c, const StepRun& got, const StepRun& wanted,
                       BesideCpu& result) {
  std::map<std::string, Norms> norms;
  double all = 0;
  for (const auto& [name, want] : wanted.gradients) {
    const Tensor& own = got.gradients.at(name);
    if (own.defined() != want.defined() || own.shape() != want.shape()) {
      result.failures.push_back(fmt::format("gradient of {}: another shape than on the CPU", name));
      continue;
    }
    if (!want.defined()) continue;
    norms[name] = norms_of(own, want);
    all = std::hypot(all, norms[name].norm);
  }
  std::string worst;
  for (const auto& [name, own] : norms) {
    const double unit = std::max({own.norm, kLeastShare * all, 1e-300});
    const double error = std::isfinite(own.error) ? own.error / unit : INFINITY;
    if (error < result.gradient) continue;
    result.gradient = error;
    worst = name;
  }
  judge("gradient of " + worst, result.gradient, bar_of(c, "grad"), result);
}

void compare_trajectories(const Case& c, const Trajectories& got, const Trajectories& wanted,
                          BesideCpu& result) {
  for (const auto& [kind, losses] : wanted) {
    double worst = 0;
    for (size_t i = 0; i < losses.size(); ++i)
      worst = std::max(worst, relative_error(got.at(kind)[i], losses[i]));
    result.trajectory = std::max(result.trajectory, worst);
    judge(kind + " trajectory", worst, bar_of(c, "trajectory", kind), result);
  }
}

}  // namespace

double BesideCpu::worst() const { return std::max({loss, gradient, trajectory}); }

BesideCpu compare_with_cpu(Case c, const StepRun& step, const Trajectories& trajectories) {
  c.session.device = "cpu";
  c.session.kernels.clear();
  const StepRun wanted = run_step(c, DType::kF32);
  BesideCpu result;
  result.loss = relative_error(step.loss, wanted.loss);
  judge("loss", result.loss, bar_of(c, "loss"), result);
  compare_gradients(c, step, wanted, result);
  compare_trajectories(c, trajectories, run_trajectories(c, DType::kF32), result);
  return result;
}

}  // namespace halfnote::cases
