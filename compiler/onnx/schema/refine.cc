// float[N,64,8,8] reshaped to [-1,4096] is float[N,4096]: exporters flatten like this, and without
// the symbol nothing behind it would be known to share the batch dim.
#include "compiler/onnx/schema/refine.h"

#include <algorithm>

#include "base/error.h"

namespace halfnote::proto {
namespace {

/// A product of dims, as a number and the symbols left.
struct Product {
  int64_t number = 1;
  std::vector<std::string> symbols;
  bool valid = true;  // every dim is a number above 0 or has a symbol

  void multiply(const Dim& dim) {
    if (dim.known()) {
      valid = valid && dim.value > 0 && !__builtin_mul_overflow(number, dim.value, &number);
    } else {
      valid = valid && !dim.symbol.empty();
      symbols.push_back(dim.symbol);
    }
  }
};

/// Takes the symbols of `part` out of `whole`; false if one is not there.
bool cancel(std::vector<std::string>& whole, const std::vector<std::string>& part) {
  for (const std::string& symbol : part) {
    const auto found = std::find(whole.begin(), whole.end(), symbol);
    if (found == whole.end()) return false;
    whole.erase(found);
  }
  return true;
}

}  // namespace

void refine_reshape(Graph& graph, NodeId node) {
  const Node& data = graph.node(node);
  if (data.op != "Reshape" || !data.domain.empty() || graph.inputs(node).empty()) return;
  const ValueType& from = graph.value(graph.input(node, 0)).type;
  ValueType& to = graph.value(graph.output(node)).type;
  if (!from.is_tensor() || !from.shape || !to.is_tensor() || !to.shape) return;

  Product whole, rest;
  for (const Dim& dim : *from.shape) whole.multiply(dim);
  Dim* open = nullptr;
  for (Dim& dim : *to.shape) {
    if (dim.known() || !dim.symbol.empty()) {
      rest.multiply(dim);
      continue;
    }
    if (open != nullptr) return;
    open = &dim;
  }
  if (open == nullptr || !whole.valid || !rest.valid || whole.number % rest.number != 0) return;
  if (!cancel(whole.symbols, rest.symbols)) return;
  const int64_t factor = whole.number / rest.number;
  if (whole.symbols.empty()) *open = Dim(factor);
  if (whole.symbols.size() == 1 && factor == 1) *open = Dim::named(whole.symbols[0]);
}

void refuse_small_output(const Graph& graph, NodeId node) {
  const Node& data = graph.node(node);
  if (data.op != "ConvTranspose" || !data.domain.empty() || graph.inputs(node).empty()) return;
  const std::vector<int64_t> sizes = data.attributes.get_ints("output_shape");
  const ValueType& x = graph.value(graph.input(node, 0)).type;
  if (!x.shape || x.shape->size() != sizes.size() + 2) return;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Dim& dim = (*x.shape)[i + 2];
    if (!dim.known() || sizes[i] >= dim.value) continue;
    throw Error(ErrorCode::kUnsupported, "output_shape is smaller than the input")
        .expected("at least " + std::to_string(dim.value) + " in spatial dim " + std::to_string(i),
                  std::to_string(sizes[i]))
        .hint("cut the result with pads instead of output_shape");
  }
}

}  // namespace halfnote::proto
