// Which word opens which device, and what all devices share.
#include <array>
#include <charconv>
#include <string>
#include <utility>

#include "base/error.h"
#include "kernels/cpu/contraction/recurrent/plan.h"
#include "kernels/cpu/elementwise/broadcast.h"
#include "kernels/cpu/loss/plan.h"
#include "kernels/cpu/reduction/roi_align.h"
#include "kernels/cuda/device/emulated_device.h"
#include "kernels/cuda/device/memory_error.h"
#include "kernels/cuda/table.h"
#include "kernels/device.h"

namespace halfnote {
namespace {

constexpr int kMaxOrdinal = 1 << 16;

std::unique_ptr<Device> open_gpu([[maybe_unused]] int ordinal) {
#if defined(HALFNOTE_HAS_CUDA)
  return cuda::open_cuda_device(ordinal);
#else
  throw Error(ErrorCode::kDevice, "this build of halfnote has no CUDA")
      .expected("a build with -DHALFNOTE_CUDA=ON", "one without")
      .hint("run on --device cpu");
#endif
}

/// The N of `cuda:N`; -1 for anything else.
int ordinal_of(std::string_view name) {
  constexpr std::string_view kPrefix = "cuda:";
  if (!name.starts_with(kPrefix)) return -1;
  name.remove_prefix(kPrefix.size());
  int ordinal = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), ordinal);
  const bool whole = error == std::errc() && end == name.data() + name.size();
  return whole && ordinal >= 0 && ordinal < kMaxOrdinal ? ordinal : -1;
}

/// The device that a name was meant to be, or an empty string.
std::string_view meant_by(std::string_view name) {
  constexpr std::array<std::string_view, 3> kNames = {"cpu", "cuda", "cuda-emulated"};
  std::string lower(name);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (lower.starts_with("gpu") || lower.starts_with("nvidia")) return "cuda";
  return closest(lower, kNames);
}

}  // namespace

std::unique_ptr<Device> open_device(std::string_view name) {
  if (name == "cpu") return nullptr;
  if (name == "cuda-emulated") {
    emulation::emulation_seed();  // one that is none is told now
    return std::make_unique<cuda_emulated::EmulatedDevice>();
  }
  if (name == "cuda") return open_gpu(0);
  if (const int ordinal = ordinal_of(name); ordinal >= 0) return open_gpu(ordinal);
  const std::string_view near = meant_by(name);
  throw Error(ErrorCode::kUsage, "unknown device")
      .expected("cpu, cuda, cuda:N or cuda-emulated", "\"" + std::string(name) + "\"")
      .hint(near.empty() ? std::string() : "did you mean " + std::string(near) + "?");
}

Capture::~Capture() {
  if (!open_) return;
  try {
    stream_.end_capture();
  } catch (const Error&) {  // the error on its way says more
  }
}

Error out_of_pinned_memory(size_t bytes) {
  return Error(ErrorCode::kMemory, "out of pinned (page-locked) memory of the host")
      .expected(std::to_string(bytes) + " bytes", "an allocation failure")
      .hint(
          "free memory of the machine, or raise the limit of its container; a smaller batch "
          "needs less");
}

void throw_fault(DeviceFault& fault) {
  if (fault.kind == DeviceFault::kNone) return;
  const DeviceFault found = std::exchange(fault, DeviceFault{});
  const std::string value = std::to_string(found.value), limit = std::to_string(found.limit);
  if (found.kind == DeviceFault::kIndex) {
    throw Error(ErrorCode::kData, "index out of range")
        .expected("an index in [-" + limit + ", " + limit + ")", value);
  }
  if (found.kind == DeviceFault::kLength) throw cpu::bad_length(found.value, found.limit);
  if (found.kind == DeviceFault::kDivision) throw cpu::division_by_zero();
  if (found.kind == DeviceFault::kRegion) throw cpu::too_many_samples();
  throw cpu::bad_label(
      {found.value, found.position, found.limit,
       found.kind == DeviceFault::kLabelNotIgnored ? std::optional(found.ignored) : std::nullopt});
}

}  // namespace halfnote
