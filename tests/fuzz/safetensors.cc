// The tensors of a checkpoint: state.safetensors, every tensor of it read.
#include "runtime/train/checkpoint/safetensors.h"
#include "tests/fuzz/support/data.h"
#include "tests/fuzz/support/fuzz.h"

using namespace halfnote;  // NOLINT: a program of one function

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto path = fuzz::write_file("state.safetensors", fuzz::as_text(data, size));
  fuzz::accepts({ErrorCode::kCheckpoint}, [&] {
    const SafetensorsFile file(path);
    uint64_t bytes = 0;
    for (const SafetensorsFile::Entry& entry : file.entries()) {
      const Tensor tensor = file.tensor(entry);
      fuzz::touch(tensor);
      bytes += tensor.byte_size();
    }
    if (bytes > size) fuzz::fail("tensors of more bytes than the file has");
  });
  return 0;
}
