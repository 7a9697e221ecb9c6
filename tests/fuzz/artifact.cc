// A compiled artifact: read, made a Session and planned for a batch of 2; no step is run.
#include "compiler/onnx/import.h"
#include "runtime/train/session.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/limits.h"

using namespace halfnote;  // NOLINT: a program of one function

namespace {

constexpr int64_t kOpenDim = 2;  // of dims that the artifact leaves open

std::vector<Shape> shapes_of(const Session& session) {
  std::vector<Shape> shapes;
  for (const auto& [name, type] : session.inputs()) {
    Shape& shape = shapes.emplace_back();
    for (const Dim& dim : type.shape.value_or(SymbolicShape{})) {
      shape.push_back(dim.known() ? dim.value : kOpenDim);
    }
  }
  return shapes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Data of the wrong shape is kData; the run needs more memory than there is: kMemory.
  const auto kinds = {ErrorCode::kModel, ErrorCode::kUnsupported, ErrorCode::kData,
                      ErrorCode::kMemory};
  fuzz::accepts(kinds, [&] {
    Model model = import_model_bytes(fuzz::as_bytes(data, size), "fuzz", fuzz::import_options());
    Session session(adopt_training_info(std::move(model), 0), {.threads = 1, .plan_only = true});
    session.prepare(shapes_of(session));
  });
  return 0;
}
