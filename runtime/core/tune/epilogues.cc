#include "runtime/core/tune/epilogues.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "base/system/environment.h"
#include "compiler/ir/model.h"
#include "compiler/ir/query.h"

namespace halfnote {
namespace {

Operand operand_of(const Graph& graph, ValueId value) {
  if (!value.valid()) return {};
  const ValueType& type = graph.value(value).type;
  return {type.dtype, *known_shape(graph, value), {}, graph.constant(value)};
}

KernelCall call_of(const Graph& graph, NodeId id, bool tf32) {
  const Node& node = graph.node(id);
  KernelCall call;
  call.domain = node.domain;
  call.op = node.op;
  call.attributes = &node.attributes;
  call.tf32 = tf32;
  for (const ValueId input : graph.inputs(id)) call.inputs.push_back(operand_of(graph, input));
  for (const ValueId output : graph.outputs(id)) call.outputs.push_back(operand_of(graph, output));
  return call;
}

bool is_made_of_product(const Node& node) {
  return node.domain == kHalfnoteDomain && node.op.str().starts_with("Gemm");
}

}  // namespace

bool library_has_products(const Graph& graph, const Device& device, bool tf32) {
  constexpr std::string_view kLibrary = "blas.";
  for (const NodeId id : graph.nodes()) {
    if (!is_made_of_product(graph.node(id))) continue;
    const KernelCall call = call_of(graph, id, tf32);
    const KernelChoice choice = device.kernels().choose(call, kLibrary);
    if (choice.kernel == nullptr) return false;
    const bool adds = call.op == "Gemm" && call.has_input(2) && call.inputs[2].shape.size() == 2;
    if (adds && !choice.kernel->can_share(2, 0)) return false;
  }
  return true;
}

LinkedExchange link_exchange(const Exchange& exchange, bool tf32) {
  std::map<std::string, int, std::less<>> shared;  // of inputs and results, by their names
  int count = 0;
  for (const ValueId input : exchange.now.inputs())
    shared.emplace(exchange.now.value(input).name, count++);
  for (size_t i = 0; i < exchange.now.outputs().size(); ++i) {
    const auto is_result = [i](const auto& state) { return state.second == i; };
    const auto state = std::ranges::find_if(exchange.states, is_result);
    const bool in_place = state != exchange.states.end();
    const int number = in_place ? static_cast<int>(state->first) : count++;
    shared.emplace(exchange.now.value(exchange.now.outputs()[i]).name, number);
  }
  const auto link = [&](const Graph& graph) {
    std::map<ValueId, int> numbers;
    const auto number = [&](ValueId value) {
      if (!value.valid()) return -1;
      const auto known = shared.find(graph.value(value).name);
      if (known != shared.end()) return known->second;
      const auto [at, is_new] = numbers.try_emplace(value, count);
      count += is_new ? 1 : 0;
      return at->second;
    };
    std::vector<LinkedCall> calls;
    for (const NodeId id : graph.nodes()) {
      LinkedCall linked{call_of(graph, id, tf32), {}, {}};
      for (const ValueId input : graph.inputs(id)) linked.inputs.push_back(number(input));
      for (const ValueId output : graph.outputs(id)) linked.outputs.push_back(number(output));
      calls.push_back(std::move(linked));
    }
    return calls;
  };
  std::vector<LinkedCall> now = link(exchange.now);
  return {std::move(now), link(exchange.instead)};
}

Pays epilogues_pay(const KernelSource& source, bool tf32) {
  const std::string_view wish = word_of_environment("HALFNOTE_EPILOGUES", {"always", "never"});
  if (wish == "always") {
    return [&source, tf32](const Exchange& exchange) {
      return library_has_products(exchange.instead, *source.device, tf32);
    };
  }
  if (wish == "never" || source.choices == nullptr) return {};
  return [&source, tf32](const Exchange& exchange) {
    if (!library_has_products(exchange.instead, *source.device, tf32)) return false;
    const LinkedExchange linked = link_exchange(exchange, tf32);
    return exchange_pays(linked.now, linked.instead, source);
  };
}

}  // namespace halfnote
