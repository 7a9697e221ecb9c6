// The f32 form of a mixed-precision inference graph.
#pragma once

#include "compiler/ir/graph.h"

namespace halfnote {

/// Takes back what the precision and padding passes did to a graph: the casts of insert_casts and
/// the padding go, 16-bit constants that clean_casts rounded become f32 again, types are inferred
/// afresh and precision annotations cleared. A rounded constant keeps its rounded value: the f32
/// one is gone. 16-bit values that came with the model stay as they are. Throws Error(kModel) where
/// the types of a node do not fit together afterwards.
void to_f32(Graph& graph);

}  // namespace halfnote
