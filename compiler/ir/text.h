// The text of graphs and models: what passes are tested on, what `inspect` shows, what `.onnxtxt`
// files hold.
//
// The language is ONNX's (onnx/defs/parser.h); all that its parser reads is read here, but for
// external data, sparse and opaque types. We add what it cannot say:
//
//   float[N,10] y = Gemm (x, w)
//       the type of a result in front of its name; as in ONNX, `float` is a scalar and `float[]`
//       has an unknown rank; `?` is an unknown type inside another
//   float16[2] c = {0.1, -inf}
//       decimals for f16 and bf16 (an integer is still the bit pattern, as in ONNX);
//       nan(0x7fc00001) is a NaN with that bit pattern
//   "a\x0ab"
//       a byte in hexadecimal, in a string; any other \c is c
//   "my-domain"."op 1":"overload 1"
//       quotes around words that are no identifiers, also names of attributes and dims
//   y = Add (a, b)  # role=backward
//       a comment that begins with one of our words, on the line where an item ends, says more of
//       that item; other comments are skipped
//   state weight w -> w_new
//       after the nodes: what the training step does to an initializer
//   float[2] w = @w
//       in a training step: the tensor of the initializer `w` of the model's graph
//   training_info step { initialization: … initialization_binding: [w = w_first] algorithm: … }
//       behind the graph, like a function: an entry of Model::training
//
// Words in comments, of a node: `role=`, `precision=`, `reason="…"`, `origin="…"`, `scale=1,0,…`
// (power of the loss scale of each result), `meta={"key": "value", …}`; of an initializer:
// `trainable`, `scale=`; of an input: `scale=`; of a graph, behind its `{`: `doc="…"`, `name="…"`
// (of a function's body).
//
// Printing is canonical: equal graphs give equal text, whatever their history, and parse(print(x))
// prints the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "compiler/ir/limits.h"
#include "compiler/ir/model.h"

namespace halfnote {

struct PrintOptions {
  /// Tensors with more elements are shown as `{...}`: a view, which the parser refuses.
  std::optional<int64_t> elide_above;
};

std::string print(const Model& model, const PrintOptions& options = {});
std::string print(const Graph& graph, const PrintOptions& options = {});

/// Read a text; throw Error(kModel) with `file:line:column` for anything that is not one
/// (Error(kUnsupported) for what only ONNX knows). `limits` holds as for a binary file. An input
/// with a default value becomes an initializer. Names that are used again in another subgraph get a
/// number. Types that are declared for values that do not exist are dropped. The result has sound
/// structure; whether types fit together is the verifier's question.
Model parse_model(std::string_view text, std::string_view file_name,
                  const ImportLimits& limits = {});
Graph parse_graph(std::string_view text, std::string_view file_name,
                  const ImportLimits& limits = {});

}  // namespace halfnote
