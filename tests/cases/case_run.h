// What one case runs, on one device: a step with its gradients, and the losses of each optimizer.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "runtime/train/session.h"

namespace halfnote::cases {

/// The files of a case, and how its sessions run.
struct Case {
  nlohmann::json json;
  std::map<std::string, Tensor> inputs, expected;
  std::filesystem::path model;
  SessionOptions session;
};

Case read_case(const std::filesystem::path& folder);
CompileOptions options_of(const Case& c, DType precision);

/// The arrays of inputs.npz in the order of the step's inputs.
std::vector<Tensor> inputs_for(const Session& session, const Case& c);

/// The first step with gradients that are finite, and what it gave.
struct StepRun {
  double loss = 0;
  double low_share = 0;                     // contraction FLOPs on 16-bit inputs
  std::map<std::string, Tensor> gradients;  // of each trainable parameter; undefined: none
};
StepRun run_step(const Case& c, DType precision);

/// The losses of the case's steps with each of its optimizers.
using Trajectories = std::map<std::string, std::vector<double>>;
Trajectories run_trajectories(const Case& c, DType precision);

/// What PyTorch misses in this precision, as the case says: a number from `torch_error`, by path; 0
/// where it is not given.
double torch_error(const Case& c, DType precision, const std::string& key,
                   const std::string& inner = {});

/// Of a number, or infinity where what was got is no number.
double relative_error(double got, double wanted);

}  // namespace halfnote::cases
