// The last stage before the plan: a graph of the artifact, made concrete for the device and the
// data at hand, by a pipeline of its own under the same manager as the compile pipeline.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "compiler/ir/graph.h"
#include "kernels/kernel.h"
#include "passes/device/live_ranges.h"
#include "passes/device/update/weight_copies.h"
#include "passes/pass.h"

namespace halfnote {

/// What to show of the device passes.
struct DeviceReadyOptions {
  std::vector<std::string> dump_after;  // pass names, or `all`
  std::string dump_folder = ".";
  int64_t activation_bytes = 0;         // limit of the pass rematerialize; 0: none
  BytesBeside beside = {};              // what a plan was seen to take beside, for the same pass
  std::vector<WeightCopy> copies = {};  // what the state store holds, for the pass keep-copies
  Pays pays = {};                       // what must be measured to be done; empty: nothing of it
  bool for_cpu = true;                  // else without the passes that only the CPU has kernels for
  const KernelTable* kernels = nullptr;  // of the device; null: the CPU's
};

/// The passes of make_device_ready(), in order. They stand here and not in passes/, as they ask
/// which operators have kernels.
std::span<const PassRow> device_pipeline();
/// Those of them that run for one kind of devices.
enum class DeviceClass : uint8_t { kCpu, kGpu };
std::span<const PassRow> device_pipeline(DeviceClass device);

/// Binds the dims, infers and folds what follows from them, and takes out the padding where the
/// device gains nothing by it (a CPU has no tensor cores). Throws Error(kUnsupported) naming the
/// dims that stay open, Error(kUsage) for an unknown pass in the options. `remarks`, if given,
/// takes those of the passes.
Graph make_device_ready(const Graph& graph, const std::map<std::string, int64_t>& dims,
                        const DeviceReadyOptions& options = {},
                        std::vector<Remark>* remarks = nullptr);

/// The dims that input shapes give to the symbols of a graph's inputs. `shapes` in the order of the
/// inputs. Throws Error(kData) where a shape does not fit the input's type or gives a symbol two
/// values.
std::map<std::string, int64_t> dims_from_shapes(const Graph& graph, std::span<const Shape> shapes);

}  // namespace halfnote
