// Which epilogues of products a device is asked for (pass fuse-epilogues).
#pragma once

#include "passes/pass.h"
#include "runtime/core/tune/tuner.h"

namespace halfnote {

/// What to give to the passes for a device: with `choices` what they say of an exchange, or with
/// `tune` will say once both sides are measured (exchange_pays()); empty without. With
/// HALFNOTE_EPILOGUES=always in the environment, for tests and measurements, every exchange pays
/// for whose products the device's library has kernels, and with `never` none; any other word
/// throws Error(kUsage). `source` must outlive the result.
Pays epilogues_pay(const KernelSource& source, bool tf32);

/// Does the library compute every product of the graph, and add in place to what it adds to a sum
/// of gradients?
bool library_has_products(const Graph& graph, const Device& device, bool tf32);

/// The nodes of both graphs as calls that share inputs, results and what is one state.
struct LinkedExchange {
  std::vector<LinkedCall> now, instead;
};
LinkedExchange link_exchange(const Exchange& exchange, bool tf32);

}  // namespace halfnote
