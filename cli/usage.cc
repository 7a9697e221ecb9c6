#include "cli/usage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <system_error>

#include "passes/settings.h"

namespace halfnote::cli {
namespace {

/// The verb of a command line; null if there is none.
const CLI::App* chosen_verb(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? nullptr : chosen.front();
}

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(verb->get_name());
  }
  return names;
}

void add_options(const CLI::App& app, std::vector<std::string>& names) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
}

/// Another verb that has this option; empty if none has.
std::string verb_with(const CLI::App& app, const std::string& option) {
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (verb->get_option_no_throw(option) != nullptr) return verb->get_name();
  }
  return {};
}

std::string suggestion(const std::string& word, const std::vector<std::string>& names,
                       const std::string& otherwise) {
  const std::string_view near = closest(word, names);
  return near.empty() ? otherwise : fmt::format("did you mean {}?", near);
}

Error unknown_verb(const CLI::App& app, const std::string& word) {
  const std::vector<std::string> names = verbs_of(app);
  return Error(ErrorCode::kUsage, "unknown verb")
      .expected(fmt::format("one of {}", fmt::join(names, ", ")), fmt::format("\"{}\"", word))
      .hint(suggestion(word, names, "see halfnote --help"));
}

Error unknown_argument(const CLI::App& app, const std::string& argument, const std::string& help) {
  const CLI::App* verb = chosen_verb(app);
  if (!argument.starts_with('-')) {
    return Error(ErrorCode::kUsage, fmt::format("unexpected argument \"{}\"", argument)).hint(help);
  }
  std::vector<std::string> names;
  if (verb != nullptr) add_options(*verb, names);
  add_options(app, names);
  const std::string name = argument.substr(0, argument.find('='));
  Error error(ErrorCode::kUsage, fmt::format("unknown option {}", name));
  if (const std::string other = verb_with(app, name); verb != nullptr && !other.empty()) {
    return std::move(error).hint(fmt::format("it is an option of halfnote {}", other));
  }
  return std::move(error).hint(suggestion(name, names, help));
}

constexpr const char* kNumber = "a number, as in 0.001 or 1e-3";

Error bad_number(const std::string& name, const std::string& wanted, const std::string& text) {
  return Error(ErrorCode::kUsage, name + " has a value that it cannot have")
      .expected(wanted, fmt::format("\"{}\"", text));
}

template <class T>
std::string whole_text() {
  return fmt::format("a whole number from {} to {}", std::numeric_limits<T>::min(),
                     std::numeric_limits<T>::max());
}

/// Reads the whole text: a number, a notation of none, or one that the type does not hold.
template <class T>
std::errc read_number(std::string_view text, T& number) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  return end == text.data() + text.size() ? code : std::errc::invalid_argument;
}

/// What is expected in the place of a number that FP32 does not hold; empty for others.
std::string unheld(const std::string& text) {
  double number = 0;
  const std::errc code = read_number(text, number);
  if (code == std::errc()) return beyond_f32(number);
  if (code != std::errc::result_out_of_range) return {};
  // Beyond FP64 too: strtod tells on which side.
  return beyond_f32(std::strtod(text.c_str(), nullptr) == 0 ? 1e-300 : 1e300);
}

/// What the option takes, by CLI11's name of its type.
std::string wanted_text(const CLI::App* verb, const std::string& name) {
  const CLI::Option* option = verb == nullptr ? nullptr : verb->get_option_no_throw(name);
  const std::string type = option == nullptr ? std::string() : option->get_type_name();
  if (type.starts_with("UINT")) return whole_text<uint64_t>();
  if (type.starts_with("INT")) return whole_text<int64_t>();
  return type.starts_with("FLOAT") ? kNumber : "another value";
}

/// A value that cannot be read: CLI11 says `Could not convert: --lr = abc`.
Error bad_value(const CLI::App* verb, const std::string& text) {
  constexpr std::string_view kHead = "Could not convert: ";
  if (!text.starts_with(kHead)) {
    const std::string name = text.substr(0, text.find_first_of(": "));
    return Error(ErrorCode::kUsage, name + " takes no value");
  }
  const size_t equals = text.find(" = ", kHead.size());
  const std::string name = text.substr(kHead.size(), equals - kHead.size());
  const std::string got = equals == std::string::npos ? std::string() : text.substr(equals + 3);
  // Too large and too small are no misspelt numbers; CLI11 tells neither.
  const std::string wanted = wanted_text(verb, name);
  if (const std::string range = wanted == kNumber ? unheld(got) : ""; !range.empty())
    return bad_number(name, range, got);
  return Error(ErrorCode::kUsage, name + " has a value that it cannot have")
      .expected(wanted, fmt::format("\"{}\"", got));
}

/// An option without its value, or given more than once: `--lr: 1 required FLOAT missing`,
/// `--lr: At Most 1 required but received 2`.
Error bad_count(const std::string& text) {
  const std::string name = text.substr(0, text.find(':'));
  const size_t received = text.rfind("received ");
  if (text.ends_with("missing")) return Error(ErrorCode::kUsage, name + " needs a value");
  if (received == std::string::npos) return Error(ErrorCode::kUsage, name + " takes no value");
  return Error(ErrorCode::kUsage, name + " is given more than once")
      .expected("once", text.substr(received + 9) + " times");
}

/// What a check says: `--epochs: expected a whole number of at least 1, got "0"`.
Error bad_choice(std::string text) {
  const size_t colon = text.find(": expected ");
  if (colon != std::string::npos) text.insert(colon, " has a value that it cannot have");
  return Error(ErrorCode::kUsage, std::move(text));
}

/// CLI11's other errors in our words.
Error refused(const CLI::App& app, const CLI::ParseError& error) {
  std::string text = error.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  const CLI::App* verb = chosen_verb(app);
  switch (static_cast<CLI::ExitCodes>(error.get_exit_code())) {
    case CLI::ExitCodes::ConversionError:
      return bad_value(verb, text);
    case CLI::ExitCodes::ValidationError:
      return bad_choice(std::move(text));
    case CLI::ExitCodes::ArgumentMismatch:
      return bad_count(text);
    case CLI::ExitCodes::RequiredError:
      if (verb != nullptr) break;
      return Error(ErrorCode::kUsage, "no verb is given")
          .expected(fmt::format("one of {}", fmt::join(verbs_of(app), ", ")), "none");
    default:
      break;
  }
  return Error(ErrorCode::kUsage, std::move(text));
}

/// The first argument that is no option of the program itself.
std::string first_word(const std::vector<std::string>& arguments) {
  const auto found = std::find_if(arguments.begin(), arguments.end(),
                                  [](const std::string& a) { return !a.starts_with('-'); });
  return found == arguments.end() ? std::string() : *found;
}

template <class T>
void check_whole(const std::string& name, const std::string& text) {
  T number = 0;
  if (read_number(text, number) == std::errc()) return;
  throw bad_number(name, whole_text<T>(), text);
}

void check_fraction(const std::string& name, const std::string& text) {
  if (const std::string wanted = unheld(text); !wanted.empty())
    throw bad_number(name, wanted, text);
  double number = 0;
  if (read_number(text, number) != std::errc()) throw bad_number(name, kNumber, text);
}

void check_value(const CLI::Option& option, const std::string& text) {
  const std::string name = option.get_name();
  if (text.empty()) {
    throw Error(ErrorCode::kUsage, name + " needs a value")
        .expected("a value", "an empty text")
        .hint("is a variable of the shell not set?");
  }
  if (text == "-") {
    throw Error(ErrorCode::kUsage, name + " cannot be standard input or output")
        .expected("the name of a file", "\"-\"")
        .hint("./- is the file of that name");
  }
  const std::string type = option.get_type_name();
  if (type.starts_with("UINT")) return check_whole<uint64_t>(name, text);
  if (type.starts_with("INT")) return check_whole<int64_t>(name, text);
  if (type.starts_with("FLOAT")) check_fraction(name, text);
}

void check_values_of(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& text : option->results()) check_value(*option, text);
  }
}

}  // namespace

void check_values(const CLI::App& app) {
  check_values_of(app);
  if (const CLI::App* verb = chosen_verb(app)) check_values_of(*verb);
}

Error usage_error(const CLI::App& app, const CLI::ParseError& error,
                  const std::vector<std::string>& arguments) {
  const CLI::App* verb = chosen_verb(app);
  const std::string word = first_word(arguments);
  const std::vector<std::string> names = verbs_of(app);
  const bool known = std::find(names.begin(), names.end(), word) != names.end();
  if (verb == nullptr && !word.empty() && !known) return unknown_verb(app, word);
  const std::string help = verb == nullptr
                               ? "see halfnote --help"
                               : fmt::format("see halfnote {} --help", verb->get_name());
  // A misspelt option is the likely cause of a missing one.
  const std::vector<std::string> extras = app.remaining(true);
  const auto option = std::find_if(extras.begin(), extras.end(),
                                   [](const std::string& a) { return a.starts_with('-'); });
  if (option != extras.end()) return unknown_argument(app, *option, help);
  if (!extras.empty() && error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    return unknown_argument(app, extras.front(), help);
  }
  return refused(app, error).hint(help);
}

}  // namespace halfnote::cli
