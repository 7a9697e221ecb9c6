#include "base/ops/epilogue.h"

#include <string>

#include "base/error.h"

namespace halfnote {

GemmActivation gemm_activation(const Attributes& attributes) {
  const std::string word = attributes.get_string("activation", "");
  if (word == "Relu") return GemmActivation::kRelu;
  if (word == "Gelu") return GemmActivation::kGelu;
  throw Error(ErrorCode::kModel, "a product with an unknown activation")
      .expected("Relu or Gelu", "\"" + word + "\"");
}

bool sums_are_of_a(const Attributes& attributes) {
  const std::string word = attributes.get_string("of", "");
  if (word == "A" || word == "B") return word == "A";
  throw Error(ErrorCode::kModel, "a product with sums of an unknown operand")
      .expected("A or B", "\"" + word + "\"");
}

}  // namespace halfnote
