// What settings may be, whoever gave them: a flag, a policy file, a DeepSpeed configuration.
#pragma once

#include <string>
#include <utility>

#include "base/error.h"
#include "passes/options.h"

namespace halfnote {

/// A setting that it cannot have. Its key is that of the policy file, as in
/// `optimizer.schedule.kind`; of a parameter group `optimizer.group[0].lr_factor`.
class SettingError : public Error {
 public:
  SettingError(std::string key, Error error) : Error(std::move(error)), key_(std::move(key)) {}
  const std::string& key() const { return key_; }

 private:
  std::string key_;
};

/// Throws SettingError for a kind, number or schedule that is none.
void check_optimizer(const Optimizer& optimizer);

/// Throws SettingError for a rule that no loss scale can follow.
void check_scaler(const LossScaler& scaler);

/// Checks all settings that hold without a model. Throws SettingError with the line of the policy
/// file that is to blame, where one is.
void check_settings(const CompileOptions& options);

}  // namespace halfnote
