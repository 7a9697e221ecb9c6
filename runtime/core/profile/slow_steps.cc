#include "runtime/core/profile/slow_steps.h"

#include <fmt/format.h>

namespace halfnote {
namespace {

constexpr double kWorthTelling = 0.01;

bool is_slow(const ProgramStep& step) {
  return step.row != nullptr && step.row->use == RowUse::kFallback && step.flops > 0;
}

}  // namespace

std::optional<Remark> tell_slow_steps(const Program& program) {
  double all = 0, slow = 0;
  size_t count = 0;
  const ProgramStep* longest = nullptr;
  for (const ProgramStep& step : program.steps) {
    all += step.flops;
    if (!is_slow(step)) continue;
    slow += step.flops;
    ++count;
    if (longest == nullptr || step.flops > longest->flops) longest = &step;
  }
  if (longest == nullptr || slow < kWorthTelling * all) return std::nullopt;
  std::string why;
  for (const Refusal& refusal : longest->refusals)
    why += fmt::format("; {}: {}", refusal.kernel, refusal.reason);
  return Remark{
      Remark::Level::kWarning, "kernels", program.name,
      fmt::format(
          "{} of its contractions, {:.0f} % of its FLOPs, run on plain loops, which are far "
          "slower than a library; the largest is node \"{}\" ({}) on {}{}",
          count, 100 * slow / all, longest->node, longest->op, longest->row->name, why)};
}

}  // namespace halfnote
