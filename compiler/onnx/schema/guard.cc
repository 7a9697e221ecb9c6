#include "compiler/onnx/schema/guard.h"

#include <string>
#include <string_view>

#include "base/error.h"
#include "base/printable.h"

namespace halfnote::proto {

namespace {

/// ONNX 1.23 waits for ever for the end of a term with any other character.
void guard_einsum(const Attributes& attributes) {
  const Attribute* attribute = attributes.find("equation");
  const auto* equation = attribute == nullptr ? nullptr : std::get_if<std::string>(attribute);
  if (equation == nullptr) return;
  const size_t arrow = equation->find("->");
  for (size_t i = 0; i < equation->size(); ++i) {
    const char c = (*equation)[i];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool of_arrow = arrow != std::string::npos && (i == arrow || i == arrow + 1);
    if (letter || of_arrow || c == ' ' || c == ',' || c == '.') continue;
    throw Error(
        ErrorCode::kModel,
        "malformed einsum equation: an unexpected character at position " + std::to_string(i))
        .expected("letters, commas, one \"...\" per term and one \"->\"",
                  "\"" + printable(*equation) + "\"");
  }
}

/// ONNX 1.23 counts the dims of the result from there, before the first one of the data.
void guard_gather_nd(const Attributes& attributes) {
  const Attribute* attribute = attributes.find("batch_dims");
  const auto* count = attribute == nullptr ? nullptr : std::get_if<int64_t>(attribute);
  if (count == nullptr || *count >= 0) return;
  throw Error(ErrorCode::kModel, "invalid batch_dims")
      .expected("0 or more", std::to_string(*count));
}

struct Guard {
  std::string_view op;
  void (*check)(const Attributes&);
};

constexpr Guard kGuards[] = {{"Einsum", guard_einsum}, {"GatherND", guard_gather_nd}};

}  // namespace

void guard_inference(const Node& node) {
  if (!node.domain.empty()) return;
  for (const Guard& guard : kGuards) {
    if (guard.op == node.op) guard.check(node.attributes);
  }
}

}  // namespace halfnote::proto
