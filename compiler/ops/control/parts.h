// Rules of control flow, and how the operands of its nodes lie to the inputs of their bodies.
#pragma once

#include <string_view>
#include <vector>

#include "compiler/ops/operator.h"

namespace halfnote::control {

std::vector<Expr> if_gradient(GradientContext& rule);    // if_gradient.cc
std::vector<Expr> scan_gradient(GradientContext& rule);  // scan_gradient.cc

// spectral.cc
std::vector<Expr> dft_gradient(GradientContext& rule);
std::vector<Expr> lower_stft(LowerContext& rule);

/// The region that an attribute holds; throws Error(kModel) if it holds none.
RegionId body_of(const Graph& graph, NodeId node, std::string_view attribute);
/// Throws Error(kUnsupported) where a body, at any depth, draws random numbers: computed again it
/// would draw others.
void refuse_random(const Graph& graph, RegionId body);
/// The values as outputs of a region: those that it does not make, and those that stand twice, are
/// passed on by an Identity.
void set_results(Builder& b, RegionId region, std::vector<ValueId> values);
/// A builder of backward nodes at the end of a region.
Builder body_builder(GradientContext& rule, RegionId region);

}  // namespace halfnote::control
