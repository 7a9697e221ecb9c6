#include "kernels/cpu/cpu_info.h"

#include <fmt/format.h>

#include <dnnl.hpp>
#include <fstream>
#include <string_view>

#include "base/error.h"
#include "base/system/environment.h"

namespace halfnote::cpu {

namespace {

struct IsaName {
  dnnl::cpu_isa isa;
  std::string_view name;
};

constexpr IsaName kNames[] = {
    {dnnl::cpu_isa::sse41, "sse41"},
    {dnnl::cpu_isa::avx, "avx"},
    {dnnl::cpu_isa::avx2, "avx2"},
    {dnnl::cpu_isa::avx2_vnni, "avx2_vnni"},
    {dnnl::cpu_isa::avx2_vnni_2, "avx2_vnni_2"},
    {dnnl::cpu_isa::avx512_core, "avx512_core"},
    {dnnl::cpu_isa::avx512_core_vnni, "avx512_core_vnni"},
    {dnnl::cpu_isa::avx512_core_bf16, "avx512_core_bf16"},
    {dnnl::cpu_isa::avx512_core_fp16, "avx512_core_fp16"},
    {dnnl::cpu_isa::avx512_core_amx, "avx512_core_amx"},
    {dnnl::cpu_isa::avx512_core_amx_fp16, "avx512_core_amx_fp16"},
};

/// The model name that Linux reports; empty where there is none.
std::string model_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t start = line.find_first_not_of(" \t:", line.find(':'));
    return start == std::string::npos ? std::string() : line.substr(start);
  }
  return {};
}

/// `f32`, `dots` or nothing.
std::string_view bf16_wish() { return word_of_environment("HALFNOTE_BF16", {"f32", "dots"}); }

/// What oneDNN may use at most.
dnnl::cpu_isa onednn_limit() {
  if (is_vector_isa_named() && vector_isa() == VectorIsa::kBaseline) return dnnl::cpu_isa::sse41;
  if (is_vector_isa_named() && vector_isa() == VectorIsa::kAvx2) return dnnl::cpu_isa::avx2;
  return bf16_wish().empty() ? dnnl::cpu_isa::isa_default
                             : dnnl::cpu_isa::avx512_core_fp16;  // the last without AMX
}

void set_onednn_isa() {
  const dnnl::cpu_isa limit = onednn_limit();
  if (limit == dnnl::cpu_isa::isa_default) return;
  if (dnnl::set_max_cpu_isa(limit) == dnnl::status::success) return;
  throw Error(ErrorCode::kDevice,
              "oneDNN does not keep to what HALFNOTE_ISA or HALFNOTE_BF16 names")
      .hint("unset them, or link a oneDNN that was built with DNNL_ENABLE_MAX_CPU_ISA");
}

dnnl::cpu_isa onednn_isa() {
  limit_onednn();
  return dnnl::get_effective_cpu_isa();
}

bool is_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

Bf16Dots detect_bf16_dots() {
  const std::string_view wish = bf16_wish();
  const bool slow = wish == "f32" || (wish != "dots" && is_intel());
  switch (onednn_isa()) {
    case dnnl::cpu_isa::avx512_core_bf16:
    case dnnl::cpu_isa::avx512_core_fp16:
      return slow ? Bf16Dots::kSlow : Bf16Dots::kFast;
    case dnnl::cpu_isa::avx512_core_amx:
    case dnnl::cpu_isa::avx512_core_amx_fp16:
      return Bf16Dots::kTiles;
    default:
      return Bf16Dots::kNone;
  }
}

std::string_view bf16_text() {
  switch (bf16_dots()) {
    case Bf16Dots::kNone:
      return "no native bf16";
    case Bf16Dots::kSlow:
      return "bf16 products in f32, which is faster here";
    case Bf16Dots::kFast:
    case Bf16Dots::kTiles:
      break;
  }
  return "native bf16";
}

}  // namespace

void limit_onednn() { [[maybe_unused]] static const bool done = (set_onednn_isa(), true); }

Bf16Dots bf16_dots() {
  static const Bf16Dots dots = detect_bf16_dots();
  return dots;
}

bool cpu_has_native_bf16() {
  return bf16_dots() == Bf16Dots::kFast || bf16_dots() == Bf16Dots::kTiles;
}

std::string onednn_isa_name() {
  const dnnl::cpu_isa isa = onednn_isa();
  for (const IsaName& entry : kNames) {
    if (entry.isa == isa) return std::string(entry.name);
  }
  return fmt::format("isa {:#x}", static_cast<unsigned>(isa));
}

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
}

std::string cpu_description() {
  const std::string model = model_name();
  return fmt::format("{}, {} ({})", model.empty() ? "CPU" : model, onednn_isa_name(), bf16_text());
}

}  // namespace halfnote::cpu
