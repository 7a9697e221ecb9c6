// ONNX text: what is accepted prints to a fixpoint.
#include "compiler/ir/text.h"
#include "compiler/ir/verify.h"
#include "tests/fuzz/support/fuzz.h"

using namespace halfnote;  // NOLINT: a program of one function

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Model model;
  const auto kinds = {ErrorCode::kModel, ErrorCode::kUnsupported};
  if (!fuzz::accepts(kinds, [&] { model = parse_model(fuzz::as_text(data, size), "fuzz"); })) {
    return 0;
  }
  fuzz::accepts({ErrorCode::kModel}, [&] { verify(model, {.code = ErrorCode::kModel}); });
  const std::string printed = print(model);
  fuzz::expect_same(printed, print(parse_model(printed, "again")));
  return 0;
}
