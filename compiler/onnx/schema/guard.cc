#include "compiler/onnx/schema/guard.h"

#include <limits>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/text/printable.h"

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

/// What ONNX 1.23 makes an int of, or counts dims from, whatever it says: attributes that lead
/// before the first dim of an operand, or behind its last one.
struct Range {
  std::string_view op;  // empty: any
  std::string_view attribute;
  int64_t least = std::numeric_limits<int32_t>::min();
};

constexpr Range kRanges[] = {{"", "axis"}, {"GatherND", "batch_dims", 0}};
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

void guard_ranges(const Node& node) {
  for (const Range& range : kRanges) {
    if (!range.op.empty() && range.op != node.op) continue;
    const Attribute* attribute = node.attributes.find(range.attribute);
    const auto* number = attribute == nullptr ? nullptr : std::get_if<int64_t>(attribute);
    if (number == nullptr || (*number >= range.least && *number <= kMost)) continue;
    throw Error(ErrorCode::kModel,
                "attribute \"" + std::string(range.attribute) + "\" is out of range")
        .expected(std::to_string(range.least) + " to " + std::to_string(kMost),
                  std::to_string(*number));
  }
}

}  // namespace

void guard_inference(const Node& node) {
  if (!node.domain.empty()) return;
  if (node.op == "Einsum") guard_einsum(node.attributes);
  guard_ranges(node);
}

}  // namespace halfnote::proto
