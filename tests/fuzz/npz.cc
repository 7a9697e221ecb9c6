// NumPy's .npz archives, stored or deflated.
#include "tests/fuzz/support/data.h"
#include "tests/fuzz/support/fuzz.h"

using namespace halfnote;  // NOLINT: a program of one function

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto path = fuzz::write_file("npz.data", fuzz::as_text(data, size));
  fuzz::accepts({ErrorCode::kData, ErrorCode::kUnsupported, ErrorCode::kMemory}, [&] {
    for (const DataField& field : read_npz(path, fuzz::kDataLimits)) fuzz::touch(field.data);
  });
  return 0;
}
