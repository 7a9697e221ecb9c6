#include "compiler/onnx/schema/guard.h"

#include <string>

#include "base/error.h"
#include "base/printable.h"

namespace halfnote::proto {

void guard_inference(const Node& node) {
  if (!node.domain.empty() || node.op != "Einsum") return;
  // ONNX 1.23 waits for ever for the end of a term with any other character.
  const Attribute* attribute = node.attributes.find("equation");
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

}  // namespace halfnote::proto
