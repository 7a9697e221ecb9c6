// Steps that no kernel made for speed takes: a run says so before it begins, as they may take most
// of its time.
#pragma once

#include <optional>

#include "passes/pass.h"
#include "runtime/core/plan.h"

namespace halfnote {

/// What part of a device's program runs on loops that are there for what the libraries lack, and
/// why; nothing if it is less than a hundredth of its FLOPs.
std::optional<Remark> tell_slow_steps(const Program& program);

}  // namespace halfnote
