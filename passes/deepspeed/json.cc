#include "passes/deepspeed/json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "passes/settings.h"

namespace halfnote::deepspeed {
namespace {

constexpr double kMaxCount = 1e9;  // the product of two counts fits into 64 bits

/// A number that FP32 holds, as all settings are kept.
double narrowed(const Json& value, const std::string& key) {
  const auto number = value.get<double>();
  if (const std::string wanted = beyond_f32(number); !wanted.empty()) wrong(key, wanted, value);
  return number;
}

}  // namespace

std::string start_of(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 60);
}

void wrong(const std::string& key, std::string wanted, const Json& got) {
  Error error(ErrorCode::kUsage, "\"" + key + "\" has a value it cannot have");
  if (got == "auto") {
    throw std::move(error)
        .expected(std::move(wanted), "\"auto\"")
        .hint("\"auto\" is filled in by the Hugging Face trainer: write the value");
  }
  throw std::move(error).expected(std::move(wanted), start_of(got));
}

Setter flag(bool& target) {
  return [&target](const Json& value, const std::string& key) {
    if (!value.is_boolean()) wrong(key, "true or false", value);
    target = value.get<bool>();
  };
}

Setter number(double& target, double least) {
  return [&target, least](const Json& value, const std::string& key) {
    if (!value.is_number() || !(value.get<double>() >= least)) {
      wrong(key, std::isinf(least) ? "a number" : fmt::format("a number from {:g}", least), value);
    }
    target = narrowed(value, key);
  };
}

Setter count(int64_t& target, int64_t least) {
  return [&target, least](const Json& value, const std::string& key) {
    const double given = value.is_number() ? value.get<double>() : -1;
    if (!value.is_number() || std::floor(given) != given || given < static_cast<double>(least) ||
        given > kMaxCount) {
      wrong(key, fmt::format("a whole number from {} to {:g}", least, kMaxCount), value);
    }
    target = static_cast<int64_t>(given);
  };
}

Setter text(std::string& target) {
  return [&target](const Json& value, const std::string& key) {
    if (!value.is_string()) wrong(key, "a string", value);
    target = value.get<std::string>();
  };
}

Setter pair_of(double& first, double& second) {
  return [&first, &second](const Json& value, const std::string& key) {
    if (!value.is_array() || value.size() != 2 || !value[0].is_number() || !value[1].is_number()) {
      wrong(key, "two numbers", value);
    }
    first = narrowed(value[0], key);
    second = narrowed(value[1], key);
  };
}

Setter only(const Json& accepted, std::string why) {
  return [accepted, why = std::move(why)](const Json& value, const std::string& key) {
    if (value == accepted) return;
    throw Error(ErrorCode::kUsage, "\"" + key + "\" is not supported: " + why)
        .expected(accepted.dump(), value.dump(-1, ' ', false, Json::error_handler_t::replace));
  };
}

Setter section(Setter body) {
  return [body = std::move(body)](const Json& value, const std::string& key) {
    if (!value.is_object()) wrong(key, "an object", value);
    body(value, key);
  };
}

void unknown_type(std::string_view file, const std::string& prefix, const std::string& type,
                  const std::vector<std::string>& names) {
  const std::string_view near = closest(type, names);
  throw Error(ErrorCode::kUsage, "\"" + prefix + ".type\" is not supported")
      .at({std::string(file), {}, {}})
      .expected(fmt::format("one of {}", fmt::join(names, ", ")), "\"" + type + "\"")
      .hint(near.empty() ? std::string() : "did you mean " + std::string(near) + "?");
}

void read_keys(std::string_view file, const Json& object, const std::string& prefix,
               const Keys& keys) {
  for (const auto& [key, value] : object.items()) {
    const std::string full = prefix.empty() ? key : prefix + "." + key;
    const auto found = keys.find(key);
    if (found != keys.end()) {
      found->second(value, full);
      continue;
    }
    std::vector<std::string> known;
    for (const auto& [name, setter] : keys) known.push_back(name);
    const std::string_view near = closest(key, known);
    throw Error(ErrorCode::kUsage, "unknown key \"" + full + "\"")
        .at({std::string(file), {}, {}})
        .hint(near.empty() ? "docs/policy.md lists the keys that are read"
                           : "did you mean " + std::string(near) + "?");
  }
}

}  // namespace halfnote::deepspeed
