// A binary ONNX model: read, verified, printed; what is accepted is written, and that gives the
// same bytes when it is read and written again.
#include "compiler/ir/text.h"
#include "compiler/ir/verify.h"
#include "compiler/onnx/export.h"
#include "compiler/onnx/import.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/limits.h"

using namespace halfnote;  // NOLINT: a program of one function

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Model model;
  const bool sound = fuzz::accepts({ErrorCode::kModel, ErrorCode::kUnsupported}, [&] {
    model = import_model_bytes(fuzz::as_bytes(data, size), "fuzz", fuzz::import_options());
    verify(model, {.code = ErrorCode::kModel});
  });
  if (!sound) return 0;
  if (print(model).empty()) fuzz::fail("a model without a text");
  std::vector<std::byte> bytes;
  if (!fuzz::accepts({ErrorCode::kModel}, [&] { bytes = export_model_bytes(model); })) return 0;
  const Model again = import_model_bytes(bytes, "again");
  if (export_model_bytes(again) == bytes) return 0;
  fuzz::expect_same(print(again), print(import_model_bytes(export_model_bytes(again), "again")));
  fuzz::fail("written again it has other bytes");
}
