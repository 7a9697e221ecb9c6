#include "cli/usage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

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
  return Error(ErrorCode::kUsage, fmt::format("unknown option {}", name))
      .hint(suggestion(name, names, help));
}

/// The first argument that is no option of the program itself.
std::string first_word(const std::vector<std::string>& arguments) {
  const auto found = std::find_if(arguments.begin(), arguments.end(),
                                  [](const std::string& a) { return !a.starts_with('-'); });
  return found == arguments.end() ? std::string() : *found;
}

}  // namespace

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
  std::string text = error.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return Error(ErrorCode::kUsage, std::move(text)).hint(help);
}

}  // namespace halfnote::cli
