// What a Cast to a type of few bits listens to, for the kernels of every device.
#pragma once

#include "base/low_bit.h"
#include "kernels/kernel.h"

namespace halfnote::cpu {

struct CastRules {
  Overflow overflow = Overflow::kSaturate;      // attribute `saturate`, of 8-bit floats
  PowerRounding rounding = PowerRounding::kUp;  // attribute `round_mode`, of f8e8m0
};

CastRules cast_rules(const KernelCall& call);

}  // namespace halfnote::cpu
