#include "passes/precision/keep_dims.h"

#include <algorithm>
#include <string>

namespace halfnote {

void keep_dims(Value& value, const ValueType& before) {
  if (!before.shape) return;
  auto& shape = value.type.shape;
  if (!shape) shape = before.shape;
  if (shape->size() != before.shape->size()) return;
  for (size_t d = 0; d < shape->size(); ++d) {
    Dim& dim = (*shape)[d];
    const Dim& old = (*before.shape)[d];
    if (dim.known()) continue;
    const bool made_up = dim.symbol == value.name + "_d" + std::to_string(d);
    const bool said = old.known() || !old.symbol.empty();
    if (dim.symbol.empty() || (made_up && said)) dim = old;
  }
}

}  // namespace halfnote
