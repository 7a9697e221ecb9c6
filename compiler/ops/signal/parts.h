// Rules of Fourier transforms (fourier.cc).
#pragma once

#include <vector>

#include "compiler/ops/operator.h"

namespace halfnote::signal {

std::vector<Expr> dft_gradient(GradientContext& rule);
std::vector<Expr> lower_stft(LowerContext& rule);

}  // namespace halfnote::signal
