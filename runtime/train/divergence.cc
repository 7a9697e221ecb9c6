// When a run has diverged, and what is said of it.
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"
#include "runtime/train/trainer.h"

namespace halfnote {
namespace {

constexpr int64_t kMostStuck = 50;  // updates skipped in a row before training is given up
// Where the losses themselves are not finite under a loss scale.
constexpr const char* kForwardHint =
    "the forward pass itself gives it: compile again, with the nodes that overflow in FP32 "
    "(--fp32-node), bf16 in place of fp16, or a smaller learning rate (--lr)";

}  // namespace

Error Trainer::diverged(const StepResult& result, std::string what) {
  metrics_->log(position_.step, {{"event", std::string("diverged")},
                                 {"loss", result.loss},
                                 {"loss_scale", result.loss_scale},
                                 {"skipped", position_.skipped}});
  return Error(ErrorCode::kNumerics, std::move(what));
}

/// What no setting of the training helps against: a model that was broken before the first update.
std::optional<std::string> Trainer::reason_from_the_start() const {
  if (!broken_.empty()) {
    return fmt::format("\"{}\" held a NaN or Inf before the first step: mend it in the model",
                       broken_);
  }
  if (!lost_at_first_) return std::nullopt;
  return "no weight was changed yet: the forward pass itself gives it; look at the range of the "
         "data (--normalize), and for a Log, Sqrt or Div of what can be 0 in the model";
}

/// Training diverged for good when the loss is no number and nothing skips the update, or when
/// update after update is skipped and the loss scale has nowhere to go (below 1 it is not the
/// scale that overflows).
void Trainer::check_numerics(const StepResult& result, double scale_before, int64_t hits_before,
                             const Batch& batch) {
  const bool empty = std::isnan(result.loss) && counts_nothing(counted_, batch);
  position_.diverged = !std::isfinite(result.loss) && !empty;
  if (position_.step == 1) lost_at_first_ = position_.diverged;
  if (std::isnan(result.loss)) ++lost_;
  // No smaller loss scale mends a weight.
  const bool hopeless = lost_at_first_ && !broken_.empty();
  const bool checked = guarded_ && !hopeless && !(result.updated && result.applied);
  if (position_.diverged && !checked) {
    throw diverged(result,
                   fmt::format("the loss is {} at step {}", loss_text(result.loss), position_.step))
        .hint(reason_from_the_start().value_or(
            "compile again, with a smaller learning rate (--lr), a warm-up (--warmup) or clipping "
            "(--grad-clip)"));
  }
  if (!std::isfinite(result.loss) && !empty) lost_in_update_ = true;
  if (!result.updated) return;
  const bool lost = std::exchange(lost_in_update_, false);
  if (result.finite) {
    position_.stuck = 0;
    all_lost_ = true;
    return;
  }
  ++position_.skipped;
  if (result.floor_hits > hits_before) check_floor(result, batch, lost);
  const bool helped = result.loss_scale < scale_before && result.loss_scale >= 1;
  position_.stuck = helped ? 0 : position_.stuck + 1;
  all_lost_ = helped || (all_lost_ && lost);
  if (position_.stuck < kMostStuck) return;
  const bool scaled = is_scaled();
  if (scaled && all_lost_) {
    throw diverged(result, fmt::format("the losses of the last {} updates up to step {} were not "
                                       "finite",
                                       position_.stuck, position_.step))
        .expected("a finite loss, which no loss scale changes", loss_text(result.loss))
        .hint(reason_from_the_start().value_or(kForwardHint));
  }
  throw diverged(result, fmt::format("the gradients of the last {} updates up to step {} were not "
                                     "finite",
                                     position_.stuck, position_.step))
      .expected(scaled ? "an overflow that a smaller loss scale ends" : "finite gradients",
                scaled ? fmt::format("loss scale {}", static_cast<float>(result.loss_scale))
                       : "a NaN or Inf among them in each")
      .hint(reason_from_the_start().value_or(
          fmt::format("compile again, with {}a smaller learning rate (--lr), the nodes that "
                      "overflow in FP32 (--fp32-node){}",
                      result.loss_scale == scale_before && scaled
                          ? "a smaller loss scale or a dynamic one (--loss-scale), "
                          : "",
                      scaled ? ", or --precision bf16" : "")));
}

void Trainer::check_floor(const StepResult& result, const Batch& batch, bool lost) {
  if (session_.on_floor() == OnFloor::kHold) return;
  const int64_t step = position_.step;
  std::string what =
      !lost ? fmt::format("the gradients of step {} overflow at the smallest loss scale", step)
      : std::isfinite(result.loss)
          ? fmt::format("a loss before the update of step {} is not finite", step)
          : fmt::format("the loss of step {} is {}", step, loss_text(result.loss));
  if (lost) what += ", which no loss scale changes";
  std::string help = lost
                         ? kForwardHint
                         : "compile again, with a smaller learning rate (--lr) or --precision bf16";
  const bool diagnoses = session_.on_floor() == OnFloor::kDiagnose;
  if (diagnoses && session_.on_device()) help += ", or run on --device cpu to see the node";
  if (const auto found =
          diagnoses && !session_.on_device() ? session_.diagnose(batch.inputs) : std::nullopt) {
    what += ": " + to_string(*found);
    help = advice(*found);
  }
  throw diverged(result, std::move(what))
      .expected(
          lost ? "a finite loss" : "finite gradients",
          fmt::format("{} at loss scale {}", lost ? "none" : "an overflow", result.loss_scale))
      .hint(help + "; the policy's on_floor = \"hold\" goes on");
}

}  // namespace halfnote
