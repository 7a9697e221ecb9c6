// MNIST's idx files, plain or compressed with gzip.
#include "tests/fuzz/support/data.h"
#include "tests/fuzz/support/fuzz.h"

using namespace halfnote;  // NOLINT: a program of one function

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto path = fuzz::write_file("idx.data", fuzz::as_text(data, size));
  fuzz::accepts({ErrorCode::kData, ErrorCode::kUnsupported, ErrorCode::kMemory},
                [&] { fuzz::touch(read_idx(path, fuzz::kDataLimits)); });
  return 0;
}
