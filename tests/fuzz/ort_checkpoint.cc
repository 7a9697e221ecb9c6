// The `checkpoint` flatbuffer of an ONNX Runtime training artifact.
#include "compiler/onnx/ort_checkpoint.h"
#include "tests/fuzz/support/fuzz.h"

using namespace halfnote;  // NOLINT: a program of one function

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto path = fuzz::write_file("checkpoint", fuzz::as_text(data, size));
  fuzz::accepts({ErrorCode::kModel, ErrorCode::kUnsupported}, [&] { read_ort_checkpoint(path); });
  return 0;
}
