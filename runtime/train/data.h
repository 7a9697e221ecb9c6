// Training data in one include: what a user names on the command line (spec.h), as arrays in memory
// (dataset.h), cast into the shape of the model's inputs (inputs.h), in batches of a reproducible
// order (batcher.h).
#pragma once

#include "runtime/train/data/batcher.h"
#include "runtime/train/data/dataset.h"
#include "runtime/train/data/inputs.h"
#include "runtime/train/data/spec.h"
