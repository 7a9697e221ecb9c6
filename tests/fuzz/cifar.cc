// CIFAR's binary batches: the first byte chooses CIFAR-10 or CIFAR-100.
#include "tests/fuzz/support/data.h"
#include "tests/fuzz/support/fuzz.h"

using namespace halfnote;  // NOLINT: a program of one function

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const CifarKind& kind = data[0] % 2 == 0 ? kCifar10Records : kCifar100Records;
  const auto path = fuzz::write_file("batch.bin", fuzz::as_text(data + 1, size - 1));
  fuzz::accepts({ErrorCode::kData, ErrorCode::kMemory}, [&] {
    for (const DataField& field : read_cifar({path, path}, kind, fuzz::kDataLimits)) {
      fuzz::touch(field.data);
    }
  });
  return 0;
}
