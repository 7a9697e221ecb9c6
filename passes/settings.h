// What settings may be, whoever gave them: a flag, a policy file, a DeepSpeed configuration. An
// error calls each of them as its source does, and names the place.
#pragma once

#include <string>
#include <utility>

#include "base/error.h"
#include "passes/options.h"

namespace halfnote {

/// The parts of a message on settings; `{optimizer.lr}` stands for the name that the user has for
/// a setting: `--lr`, or `"optimizer.lr"`.
struct SettingText {
  std::string what, wanted, got, hint;
};

/// A setting that it cannot have. Its key is that of the policy file, as in
/// `optimizer.schedule.kind`; of a parameter group `optimizer.group[0].lr_factor`. Without
/// sources the message has the keys.
class SettingError : public Error {
 public:
  SettingError(std::string key, SettingText text);

  const std::string& key() const { return key_; }
  /// The same in the words of those who gave the settings, and with the place.
  SettingError named(const CompileOptions& options) const;

 private:
  SettingError(std::string key, SettingText text, Error error)
      : Error(std::move(error)), key_(std::move(key)), text_(std::move(text)) {}

  std::string key_;
  SettingText text_;
};

/// Calls `body`, whose errors are told in the words of those who gave the settings.
template <class Body>
auto with_names(const CompileOptions& options, Body&& body) {
  try {
    return body();
  } catch (const SettingError& error) {
    throw error.named(options);
  }
}

/// What a float becomes that FP32 does not hold: a text for `expected`; empty if FP32 holds it.
std::string beyond_f32(double number);

/// Throws SettingError for a kind, number or schedule that is none.
void check_optimizer(const Optimizer& optimizer);

/// Throws SettingError for a rule that no loss scale can follow.
void check_scaler(const LossScaler& scaler);

/// Checks all settings that hold without a model. Throws SettingError with names and places.
void check_settings(const CompileOptions& options);

}  // namespace halfnote
