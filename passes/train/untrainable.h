// All that keeps a model from being trained, found without training it, for one refusal that tells
// everything.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "passes/pass.h"
#include "passes/unsupported.h"

namespace halfnote {

struct Untrainable {
  UnsupportedOps gradients;  // between weights and loss: no gradient, or none of this form
  UnsupportedOps sizes;      // before the loss: sizes and structures that only data tell
  UnsupportedOps stops;      // what lets no gradient through, if no weight has an open way
};

/// How far the passes before differentiation have come.
enum class Progress : uint8_t {
  kRaw,        // not lifted, types not known everywhere: what cannot be judged is left out
  kCanonical,  // whatever is there stays
};

/// The results that the loss will be made of, as far as the options tell; none if nothing is to be
/// trained.
std::vector<ValueId> results_to_train(const Graph& graph, const PassContext& context);

/// Looks at everything before `ends` that `known` does not hold yet. Takes a graph of its own: the
/// gradient rules write into it.
Untrainable find_untrainable(Graph graph, Progress progress, std::span<const ValueId> ends,
                             const UnsupportedOps& known, PassContext& context);

/// Throws `WHAT, no gradient for 1 op between the weights and the loss, …: LIST; HINTS`:
/// what a pass cannot take (`known`; `what` and `hint` speak of it, empty if it is empty), and the
/// rest.
[[noreturn]] void refuse_all(std::string what, std::string hint, const UnsupportedOps& known,
                             const Untrainable& rest);

}  // namespace halfnote
