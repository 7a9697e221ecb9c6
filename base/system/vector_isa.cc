#include "base/system/vector_isa.h"

#include <cstdlib>
#include <string>

#include "base/error.h"

namespace halfnote {
namespace {

constexpr const char* kVariable = "HALFNOTE_ISA";

std::string_view wish_of_environment() {
  const char* wish = std::getenv(kVariable);
  return wish ? wish : "";
}

bool has_baseline() { return true; }

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
#endif

struct IsaRow {
  std::string_view name;
  VectorIsa isa;
  bool (*has)();
};

/// The best first.
constexpr IsaRow kIsas[] = {
    {"avx512", VectorIsa::kAvx512, has_avx512},
    {"avx2", VectorIsa::kAvx2, has_avx2},
    {"baseline", VectorIsa::kBaseline, has_baseline},
};

}  // namespace

VectorIsa vector_isa_for(std::string_view wish) {
  for (const IsaRow& row : kIsas) {
    if (wish.empty() && row.has()) return row.isa;
    if (wish != row.name) continue;
    if (row.has()) return row.isa;
    throw Error(ErrorCode::kDevice,
                std::string(kVariable) + " names instructions that this CPU lacks")
        .expected("AVX2 with FMA, or AVX-512 with BW, DQ and VL, as named", std::string(wish))
        .hint("unset it, or name less");
  }
  throw Error(ErrorCode::kUsage, std::string(kVariable) + " in the environment is no name")
      .expected("baseline, avx2 or avx512", std::string(wish));
}

VectorIsa vector_isa() {
  static const VectorIsa isa = vector_isa_for(wish_of_environment());
  return isa;
}

bool is_vector_isa_named() { return !wish_of_environment().empty(); }

}  // namespace halfnote
