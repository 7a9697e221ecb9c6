// A binary ONNX model: read, verified, printed; what is accepted is written again, and that is read
// as the same model.
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
  const std::string text = print(model);
  std::vector<std::byte> bytes;
  if (!fuzz::accepts({ErrorCode::kModel}, [&] { bytes = export_model_bytes(model); })) return 0;
  if (print(import_model_bytes(bytes, "again")) != text) fuzz::fail("written and read: not equal");
  return 0;
}
