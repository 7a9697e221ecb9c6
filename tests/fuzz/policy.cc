// The policy file (TOML); what is accepted can be described.
#include "passes/compile.h"
#include "passes/policy_file.h"
#include "tests/fuzz/support/fuzz.h"

using namespace halfnote;  // NOLINT: a program of one function

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::accepts({ErrorCode::kUsage, ErrorCode::kUnsupported}, [&] {
    CompileOptions options;
    parse_policy(fuzz::as_text(data, size), "fuzz", options);
    if (describe(options).empty()) fuzz::fail("a policy without a description");
  });
  return 0;
}
