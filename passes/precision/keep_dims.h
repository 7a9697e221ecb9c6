// What a model says of the sizes of its values, where inference runs anew in another type.
#pragma once

#include "compiler/ir/graph.h"

namespace halfnote {

/// Gives a value that was just inferred the dims of its type before, where inference does not know
/// them or made up a symbol (`y_d0`): the model's own symbol is worth more.
void keep_dims(Value& value, const ValueType& before);

}  // namespace halfnote
