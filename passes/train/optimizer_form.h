// The kinds of --optimizer: which op each is, with which attributes and which states.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/attribute.h"
#include "base/shape.h"
#include "passes/options.h"

namespace halfnote {

/// A state tensor of a parameter, named PARAMETER.NAME, all its elements `first` at the start.
struct OptimizerState {
  std::string_view name;
  Shape shape;
  float first = 0;
};

struct OptimizerForm {
  std::string_view op;  // of ai.halfnote
  Attributes attributes;
  bool reads_step = true;
};

/// The form of `options.kind`; throws SettingError for an unknown kind.
OptimizerForm optimizer_form(const Optimizer& options);
/// The states of a parameter of this shape, in the order of the op's inputs; nothing where the op's
/// slot stays empty.
std::vector<std::optional<OptimizerState>> optimizer_states(const Optimizer& options,
                                                            const Shape& shape);

}  // namespace halfnote
