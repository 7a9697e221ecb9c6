// Reading a DeepSpeed configuration key by key: what a key may hold, and what is said of one that
// holds something else.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace halfnote::deepspeed {

using Json = nlohmann::ordered_json;
/// Takes a value over; `key`: its whole name, as in `fp16.enabled`. Throws Error(kUsage).
using Setter = std::function<void(const Json& value, const std::string& key)>;
using Keys = std::map<std::string, Setter, std::less<>>;

/// The value as text, cut to what a message can hold.
std::string start_of(const Json& value);
[[noreturn]] void wrong(const std::string& key, std::string wanted, const Json& got);
[[noreturn]] void unknown_type(std::string_view file, const std::string& prefix,
                               const std::string& type, const std::vector<std::string>& names);

Setter flag(bool& target);
Setter number(double& target, double least = -HUGE_VAL);
Setter count(int64_t& target, int64_t least);
Setter text(std::string& target);
Setter pair_of(double& first, double& second);
/// A switch that is only taken in one position: the other would train otherwise than it says.
Setter only(const Json& accepted, std::string why);
Setter section(Setter body);

/// Reads every key of an object by its setter; unknown ones are errors, with the closest one.
void read_keys(std::string_view file, const Json& object, const std::string& prefix,
               const Keys& keys);

}  // namespace halfnote::deepspeed
