// If, on the CPU and on a device.
#pragma once

#include <memory>

#include "runtime/core/control/body.h"

namespace halfnote {

/// Bodies whose inputs are the captures of the step, behind the condition. On the CPU one of them
/// runs; on a device, which must not ask the host, both do, and of the one that was not asked for
/// neither results nor faults are taken.
std::unique_ptr<Kernel> make_if_kernel(std::unique_ptr<Body> then, std::unique_ptr<Body> otherwise,
                                       const Device* device);

}  // namespace halfnote
