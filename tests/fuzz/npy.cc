// NumPy's .npy files.
#include "tests/fuzz/support/data.h"
#include "tests/fuzz/support/fuzz.h"

using namespace halfnote;  // NOLINT: a program of one function

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto path = fuzz::write_file("npy.data", fuzz::as_text(data, size));
  fuzz::accepts({ErrorCode::kData, ErrorCode::kUnsupported, ErrorCode::kMemory},
                [&] { fuzz::touch(read_npy(path, fuzz::kDataLimits)); });
  return 0;
}
