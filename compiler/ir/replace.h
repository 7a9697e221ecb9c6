// One value in another's place.
#pragma once

#include "compiler/ir/graph.h"

namespace halfnote {

/// `to` takes the uses and the name of `from`, a result of the same region: a graph's output keeps
/// its name. `from` gets a name of its own; who has no more use for its node removes it.
inline void take_place(Graph& graph, ValueId from, ValueId to) {
  const std::string name = graph.value(from).name;
  graph.rename(from, graph.unique_name(name + ".old"));
  graph.rename(to, name);
  graph.replace_uses(from, to);
}

}  // namespace halfnote
