// Which epilogues of products a device is asked for (pass fuse-epilogues).
#pragma once

#include "kernels/device.h"
#include "passes/pass.h"

namespace halfnote {

/// What to give to the passes for a device: empty, as long as nothing was measured. With
/// HALFNOTE_EPILOGUES=always in the environment, for tests and measurements: wherever the device's
/// library has kernels for all products of the second graph. Throws Error(kUsage) where that is set
/// to anything but `always`, `never` or nothing.
Pays epilogues_pay(const Device& device, bool tf32);

/// Does the library compute every product of the graph, and add in place to what it adds to a sum
/// of gradients?
bool library_has_products(const Graph& graph, const Device& device, bool tf32);

}  // namespace halfnote
