#include "passes/policy_file.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <functional>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "passes/nesting.h"
#include "passes/precision/like.h"
#include "passes/precision/presets.h"
#include "passes/settings.h"

namespace halfnote {
namespace {

constexpr size_t kMaxPolicyBytes = size_t{1} << 20;
constexpr int kMaxKeyParts = 8;  // `optimizer.schedule.kind` has 3

/// A key, its place in the file and its name with that of its tables, for errors.
struct Where {
  std::string place, key, path;  // FILE:LINE, beta1, optimizer.beta1
};

using TomlSetter = std::function<void(const toml::node&, const Where& where)>;
using TomlKeys = std::map<std::string, TomlSetter, std::less<>>;

std::string where_of(const toml::node& node, std::string_view file) {
  return std::string(file) + ":" + std::to_string(node.source().begin.line);
}

/// As in `a list of 2` or `the string "fast"`.
std::string found_text(const toml::node& node) {
  if (const toml::array* list = node.as_array()) {
    for (const toml::node& element : *list) {
      if (!element.is_string()) return "a list with " + found_text(element);
    }
    return "a list of strings";
  }
  if (const auto text = node.value_exact<std::string>()) return "the string \"" + *text + "\"";
  if (const auto number = node.value_exact<int64_t>())
    return "the number " + std::to_string(*number);
  if (const auto number = node.value_exact<double>()) return fmt::format("the number {}", *number);
  if (const auto flag = node.value_exact<bool>()) return *flag ? "true" : "false";
  return node.is_table() ? "a table" : "a date or time";
}

[[noreturn]] void wrong_type(const Where& where, const char* wanted, const toml::node& got) {
  throw Error(ErrorCode::kUsage, "key \"" + where.path + "\" has the wrong type")
      .at({where.place, {}, {}})
      .expected(wanted, found_text(got));
}

TomlSetter into(std::string& target) {
  return [&target](const toml::node& node, const Where& where) {
    const auto value = node.value_exact<std::string>();
    if (!value) wrong_type(where, "a string", node);
    target = *value;
  };
}

TomlSetter into(bool& target) {
  return [&target](const toml::node& node, const Where& where) {
    const auto value = node.value_exact<bool>();
    if (!value) wrong_type(where, "true or false", node);
    target = *value;
  };
}

TomlSetter into(float& target) {
  return [&target](const toml::node& node, const Where& where) {
    if (!node.is_number()) wrong_type(where, "a number", node);
    const double number = *node.value<double>();
    target = static_cast<float>(number);
    if (std::string wanted = beyond_f32(number); !wanted.empty()) {
      throw Error(ErrorCode::kUsage, "\"" + where.path + "\" is out of range")
          .at({where.place, {}, {}})
          .expected(std::move(wanted), fmt::format("{}", number));
    }
  };
}

TomlSetter into(int64_t& target) {
  return [&target](const toml::node& node, const Where& where) {
    const auto value = node.value_exact<int64_t>();
    if (!value) wrong_type(where, "an integer", node);
    target = *value;
  };
}

TomlSetter into(std::vector<std::string>& target) {
  return [&target](const toml::node& node, const Where& where) {
    const toml::array* list = node.as_array();
    if (list == nullptr) wrong_type(where, "a list of strings", node);
    target.clear();
    for (const toml::node& element : *list) {
      const auto value = element.value_exact<std::string>();
      if (!value) wrong_type(where, "a list of strings", node);
      target.push_back(*value);
    }
  };
}

/// A string, or a list of strings.
TomlSetter one_or_more(std::vector<std::string>& target) {
  return [&target](const toml::node& node, const Where& where) {
    if (!node.is_string()) return into(target)(node, where);
    target.clear();
    if (const std::string text = *node.value<std::string>(); !text.empty()) target.push_back(text);
  };
}

template <class T>
TomlSetter into(std::optional<T>& target) {
  return [&target](const toml::node& node, const Where& where) {
    T value{};
    into(value)(node, where);
    target = value;
  };
}

class TomlReader {
 public:
  TomlReader(std::string_view file, CompileOptions& options) : file_(file), options_(options) {}

  /// A framework's lists and scaler first, wherever they stand; the other keys change them.
  void run(const toml::table& root) {
    if (const auto like = root["precision"]["like"].value<std::string>()) {
      at_line(root["precision"]["like"], [&] { apply_like(*like, options_.policy); });
    }
    read(root, "",
         {{"precision", table_of([this] { return precision_keys(); })},
          {"loss_scale", [this](const toml::node& n, const Where& w) { loss_scale(n, w); }},
          {"train", table_of([this] { return train_keys(); })},
          {"optimizer", table_of([this] { return optimizer_keys(); })}});
  }

 private:
  /// Calls `body`, whose errors are about this node.
  template <class NodeOrView, class Body>
  void at_line(const NodeOrView& node, Body&& body) {
    try {
      body();
    } catch (Error& error) {
      error.within({where_of(*node.node(), file_), {}, {}});
      throw;
    }
  }

  /// Reads every key of a table by its setter; unknown keys are errors. `prefix`: the table's path
  /// and a dot.
  void read(const toml::table& table, const std::string& prefix, const TomlKeys& keys) {
    for (const auto& [key, entry] : table) {
      const toml::node& node = entry;  // clang 14 captures no structured binding
      const auto found = keys.find(key.str());
      if (found != keys.end()) {
        const std::string name(key.str()), place = where_of(node, file_);
        options_.sources[prefix + name] = {place, prefix + name};
        at_line(toml::node_view(node), [&] { found->second(node, {place, name, prefix + name}); });
        continue;
      }
      std::vector<std::string> known;
      for (const auto& [name, setter] : keys) known.push_back(name);
      const std::string_view near = closest(key.str(), known);
      throw Error(ErrorCode::kUsage, "unknown key \"" + prefix + std::string(key.str()) + "\"")
          .at({where_of(node, file_), {}, {}})
          .hint(near.empty() ? "docs/policy.md lists the keys"
                             : "did you mean " + std::string(near) + "?");
    }
  }

  TomlSetter table_of(std::function<TomlKeys()> keys) {
    return [this, keys = std::move(keys)](const toml::node& node, const Where& where) {
      const toml::table* table = node.as_table();
      if (table == nullptr) wrong_type(where, "a table", node);
      read(*table, where.path + ".", keys());
    };
  }

  /// A list of precision rules; errors about one of them, found much later, name its line.
  TomlSetter rules(std::vector<std::string>& target) {
    return [this, &target](const toml::node& node, const Where& where) {
      into(target)(node, where);
      for (size_t i = 0; i < target.size(); ++i) {
        options_.policy.sources[{where.key, target[i]}] = where_of(*node.as_array()->get(i), file_);
      }
    };
  }

  TomlKeys precision_keys() {
    Policy& p = options_.policy;
    return {{"dtype",
             [&p](const toml::node& node, const Where& where) {
               std::string name;
               into(name)(node, where);
               p.dtype = parse_precision(name);
             }},
            {"like", into(like_)},
            {"allow_ops", rules(p.allow_ops)},
            {"fp32_ops", rules(p.fp32_ops)},
            {"allow_nodes", rules(p.allow_nodes)},
            {"fp32_nodes", rules(p.fp32_nodes)},
            {"cost_refinement", into(p.cost_refinement)},
            {"pad", into(p.pad)}};
  }

  /// The preset first, whatever its place in the table; the other keys change it.
  void loss_scale(const toml::node& node, const Where& where) {
    const toml::table* table = node.as_table();
    if (table == nullptr) wrong_type(where, "a table", node);
    LossScaler& s = options_.policy.scaler;
    if (const auto preset = (*table)["preset"].value<std::string>()) {
      at_line((*table)["preset"], [&] { s = scaler_preset(*preset); });
    }
    read(*table, where.path + ".",
         {{"preset", into(s.preset)},
          {"dynamic", into(s.dynamic)},
          {"init", into(s.init)},
          {"up", into(s.up)},
          {"down", into(s.down)},
          {"interval", into(s.interval)},
          {"warmup_interval", into(s.warmup_interval)},
          {"hysteresis", into(s.hysteresis)},
          {"refill", into(s.refill)},
          {"first_window_extra", into(s.first_window_extra)},
          {"publish_delay", into(s.publish_delay)},
          {"min", into(s.min)},
          {"max", into(s.max)},
          {"on_floor", into(s.on_floor)}});
  }

  TomlKeys train_keys() {
    TrainOptions& t = options_.train;
    return {{"loss", into(t.loss)},
            {"loss_output", one_or_more(t.loss_outputs)},
            {"loss_input", into(t.loss_input)},
            {"huber_delta", into(t.huber_delta)},
            {"label_smoothing", into(t.label_smoothing)},
            {"ignore_index", into(t.ignore_index)},
            {"class_axis", into(t.class_axis)},
            {"trainable", into(t.trainable)},
            {"freeze", into(t.frozen)},
            {"tie", into(t.tied)},
            {"force_training", into(t.force_training)},
            {"accumulate", into(t.accumulation)},
            {"micro_batch", into(t.micro_batch)},
            {"seed", into(t.seed)}};
  }

  TomlKeys optimizer_keys() {
    Optimizer& o = options_.train.optimizer;
    const auto kind = [&o, set = TomlSetter(into(o.kind))](const toml::node& n, const Where& w) {
      set(n, w);
      o.chosen = true;
    };
    return {{"kind", kind},
            {"correct_bias", into(o.correct_bias)},
            {"lr", into(o.lr)},
            {"momentum", into(o.momentum)},
            {"dampening", into(o.dampening)},
            {"beta1", into(o.beta1)},
            {"beta2", into(o.beta2)},
            {"epsilon", into(o.epsilon)},
            {"weight_decay", into(o.weight_decay)},
            {"alpha", into(o.alpha)},
            {"centered", into(o.centered)},
            {"lr_decay", into(o.lr_decay)},
            {"initial_accumulator", into(o.initial_accumulator)},
            {"min_ratio", into(o.min_ratio)},
            {"max_ratio", into(o.max_ratio)},
            {"decay_rate", into(o.decay_rate)},
            {"clip_threshold", into(o.clip_threshold)},
            {"epsilon_param", into(o.epsilon_param)},
            {"relative_step", into(o.relative_step)},
            {"scale_parameter", into(o.scale_parameter)},
            {"clip_norm", into(o.clip_norm)},
            {"no_decay_on_1d", into(o.no_decay_on_1d)},
            {"schedule", table_of([this] { return schedule_keys(); })},
            {"group", [this](const toml::node& n, const Where& w) { groups(n, w); }}};
  }

  TomlKeys schedule_keys() {
    Schedule& s = options_.train.optimizer.schedule;
    return {{"kind", into(s.kind)},
            {"warmup", into(s.warmup)},
            {"warmup_kind", into(s.warmup_kind)},
            {"warmup_factor", into(s.warmup_factor)},
            {"delay", into(s.delay)},
            {"decay_start", into(s.decay_start)},
            {"total", into(s.total)},
            {"final_factor", into(s.final_factor)},
            {"step_size", into(s.step_size)},
            {"gamma", into(s.gamma)},
            {"slope", into(s.slope)},
            {"staircase", into(s.staircase)},
            {"zero_first", into(s.zero_first)}};
  }

  void groups(const toml::node& node, const Where& where) {
    const toml::array* list = node.as_array();
    if (list == nullptr) wrong_type(where, "an array of tables ([[optimizer.group]])", node);
    for (const toml::node& element : *list) {
      const toml::table* table = element.as_table();
      if (table == nullptr) wrong_type(where, "an array of tables ([[optimizer.group]])", element);
      ParameterGroup group;
      const size_t index = options_.train.optimizer.groups.size();
      const std::string path = fmt::format("{}[{}].", where.path, index);
      options_.sources[path + "pattern"] = {where_of(element, file_), path + "pattern"};
      read(*table, path,
           {{"pattern", into(group.pattern)},
            {"weight_decay", into(group.weight_decay)},
            {"lr_factor", into(group.lr_factor)}});
      options_.train.optimizer.groups.push_back(std::move(group));
    }
  }

  std::string_view file_;
  CompileOptions& options_;
  std::string like_;  // taken before the other keys
};

}  // namespace

DType parse_precision(std::string_view name) {
  struct Spelling {
    std::string_view name;
    DType dtype;
  };
  // Ours, PyTorch Lightning's and Keras'.
  static constexpr Spelling kSpellings[] = {
      {"fp32", DType::kF32},       {"f32", DType::kF32},         {"32", DType::kF32},
      {"float32", DType::kF32},    {"fp16", DType::kF16},        {"f16", DType::kF16},
      {"fp16-mixed", DType::kF16}, {"16-mixed", DType::kF16},    {"mixed_float16", DType::kF16},
      {"bf16", DType::kBF16},      {"bf16-mixed", DType::kBF16}, {"mixed_bfloat16", DType::kBF16},
  };
  std::vector<std::string_view> names;
  for (const Spelling& spelling : kSpellings) {
    if (spelling.name == name) return spelling.dtype;
    names.push_back(spelling.name);
  }
  std::string hint;
  std::string lowered(name);
  for (char& c : lowered) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (name == "float16" || name == "bfloat16") {
    hint = "weights stay in FP32 here: the mixed policy is mixed_" + std::string(name);
  } else if (const std::string_view near = closest(lowered, names); !near.empty()) {
    hint = "did you mean " + std::string(near) + "?";
  }
  throw SettingError("precision.dtype",
                     {"{precision.dtype} names no precision",
                      "fp32, fp16 or bf16 (Keras: float32, mixed_float16, mixed_bfloat16)",
                      "\"" + std::string(name) + "\"", hint});
}

void parse_policy(std::string_view text, std::string_view file_name, CompileOptions& options) {
  if (toml_key_longer(text, kMaxKeyParts)) {
    throw Error(ErrorCode::kUsage, "a key of the policy file has too many parts")
        .at({std::string(file_name), {}, {}})
        .expected("at most " + std::to_string(kMaxKeyParts) + " between dots", "more");
  }
  toml::table root;
  try {
    root = toml::parse(text, file_name);
  } catch (const toml::parse_error& error) {
    throw Error(ErrorCode::kUsage,
                "the policy file is no valid TOML: " + std::string(error.description()))
        .at({std::string(file_name) + ":" + std::to_string(error.source().begin.line), {}, {}});
  }
  TomlReader(file_name, options).run(root);
}

void load_policy(const std::filesystem::path& file, CompileOptions& options) {
  parse_policy(read_text(file, kMaxPolicyBytes), file.string(), options);
}

}  // namespace halfnote
