#include "runtime/core/profile/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace halfnote {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMs = 1e3, kGiga = 1e-9;

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

std::string rate_text(double amount, double seconds) {
  return amount > 0 && seconds > 0 ? fmt::format("{:.1f}", kGiga * amount / seconds) : "-";
}

std::string peak_text(const ProfileRow& row) {
  return row.peak_time > 0 ? fmt::format("{:.1f}", 100 * row.peak_share()) : "-";
}

/// What the times are, and what they are held against.
std::string head_text(const Profiler& profiler, const MachinePeak& peak) {
  if (profiler.device().empty())
    return "profile; the machine's peak, measured at its start: " + to_string(peak) + "\n";
  return "profile of " + profiler.device() +
         " by its own clock, with an event between every two nodes, which are launched one by one: "
         "without --profile\na step is captured and has no gaps between them; no peak is "
         "measured\n";
}

std::string totals_text(const ProfileTable& t) {
  std::string text =
      fmt::format("{}: {} nodes, {:.3f} ms a run (fastest {:.3f}), mean of {} run{}\n", t.program,
                  t.steps, kMs * t.seconds, kMs * t.best_seconds, t.runs,
                  t.runs == 1 ? ", the first" : "s after the first");
  text += fmt::format("  contractions   {:.3f} ms = {:.1f} % of the run\n", kMs * t.contractions,
                      100 * share(t.contractions, t.seconds));
  if (t.flops > 0 && t.flops_peak_time > 0) {
    text += fmt::format(
        "  matmul peak    {:.1f} % reached by the whole run, {:.1f} % within contractions "
        "({:.2f} GFLOP)\n",
        100 * share(t.flops_peak_time, t.seconds), 100 * share(t.flops_peak_time, t.contractions),
        kGiga * t.flops);
  }
  text += fmt::format("  copies         {:.3f} ms: results to their states\n", kMs * t.copies);
  text +=
      fmt::format("  outside        {:.3f} ms between runs: data, other programs, metrics, files\n",
                  kMs * share(t.outside, static_cast<double>(t.runs)));
  return text;
}

std::string rows_text(const ProfileTable& table, const std::vector<ProfileRow>& rows, size_t count,
                      bool shapes) {
  std::string text =
      fmt::format("  {:>6} {:>10} {:>6} {:>8} {:>7} {:>6}  {}\n", "calls", "ms", "%", "GFLOP/s",
                  "GB/s", "peak%", shapes ? "op, kernel, shapes" : "op, kernel, types");
  for (size_t i = 0; i < std::min(count, rows.size()); ++i) {
    const ProfileRow& row = rows[i];
    text += fmt::format("  {:>6} {:>10.3f} {:>6.2f} {:>8} {:>7} {:>6}  {} {}  {}\n", row.calls,
                        kMs * row.seconds, 100 * share(row.seconds, table.seconds),
                        rate_text(row.flops, row.seconds), rate_text(row.bytes, row.seconds),
                        peak_text(row), row.op, row.kernel, shapes ? row.shapes : row.types);
  }
  if (rows.size() <= count) return text;
  double rest = 0;
  for (size_t i = count; i < rows.size(); ++i) rest += rows[i].seconds;
  return text + fmt::format("  {:>6} {:>10.3f} {:>6.2f}  {} more rows\n", "", kMs * rest,
                            100 * share(rest, table.seconds), rows.size() - count);
}

/// The reference kernels that cost most, where a faster one was asked and said no.
std::string refusals_text(const ProfileTable& table, size_t count) {
  std::string text;
  for (const ProfileRow& row : table.shapes) {
    if (row.kernel != "reference" || row.refusals.empty() || count == 0) continue;
    text += fmt::format("  {:>10.3f} ms  {}  {}\n{:>17}{}\n", kMs * row.seconds, row.op, row.shapes,
                        "", row.refusals);
    --count;
  }
  return text;
}

Json rows_json(const std::vector<ProfileRow>& rows, bool shapes) {
  Json list = Json::array();
  for (const ProfileRow& row : rows) {
    Json one = {{"op", row.op}, {"kernel", row.kernel}};
    one[shapes ? "shapes" : "types"] = shapes ? row.shapes : row.types;
    one["calls"] = row.calls;
    one["ms"] = kMs * row.seconds;
    one["best_ms"] = kMs * row.best_seconds;
    one["flops"] = row.flops;
    one["bytes"] = row.bytes;
    one["peak_share"] = row.peak_share();
    if (!row.refusals.empty()) one["refusals"] = row.refusals;
    list.push_back(std::move(one));
  }
  return list;
}

std::string dump(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// Microseconds, as the trace format counts.
Json event(const std::string& name, const std::string& category, double begin, double end,
           size_t thread) {
  return {{"name", name},
          {"cat", category},
          {"ph", "X"},
          {"ts", 1e6 * begin},
          {"dur", 1e6 * (end - begin)},
          {"pid", 1},
          {"tid", thread}};
}

void add_run(Json& events, const ProgramProfile& profile, const ProgramProfile::Run& run,
             size_t thread) {
  const std::vector<ProgramStep>& steps = profile.program().steps;
  events.push_back(event(profile.name(), "run", run.begin, run.ends.back(), thread));
  double before = run.begin;
  for (size_t s = 0; s < steps.size(); ++s) {
    const ProgramStep& step = steps[s];
    Json one = event(step.op, std::string(kernel_name(step)), before, run.ends[s], thread);
    one["args"] = {{"node", step.node},
                   {"kernel", kernel_name(step)},
                   {"operands", operands_text(step)},
                   {"bytes", operand_bytes(step)}};
    if (step.flops > 0) one["args"]["flops"] = step.flops;
    before = run.ends[s];
    events.push_back(std::move(one));
  }
  events.push_back(event("copies to states", "copy", before, run.ends.back(), thread));
}

}  // namespace

std::string profile_text(const Profiler& profiler, const MachinePeak& peak, size_t rows) {
  const size_t count = rows == 0 ? SIZE_MAX : rows;
  std::string text = head_text(profiler, peak);
  for (const auto& profile : profiler.programs()) {
    if (profile->runs() == 0) continue;
    const ProfileTable table = tabulate(*profile, peak);
    text += "\n" + totals_text(table) + "\n by op and kernel\n";
    text += rows_text(table, table.kernels, count, false) + "\n by shape\n";
    text += rows_text(table, table.shapes, count, true);
    const std::string refusals = refusals_text(table, std::min<size_t>(count, 10));
    if (!refusals.empty()) {
      text += "\n reference kernels that cost most, and why faster ones refused\n" + refusals;
    }
  }
  return text;
}

std::string profile_json(const Profiler& profiler, const MachinePeak& peak) {
  Json json;
  json["device"] = profiler.device().empty() ? "cpu" : profiler.device();
  json["peak"] = {{"threads", peak.threads},
                  {"f32_flops", peak.f32_flops},
                  {"bf16_flops", peak.bf16_flops},
                  {"memory_bytes", peak.bytes}};
  json["programs"] = Json::array();
  for (const auto& profile : profiler.programs()) {
    if (profile->runs() == 0) continue;
    const ProfileTable t = tabulate(*profile, peak);
    json["programs"].push_back({{"program", t.program},
                                {"runs", t.runs},
                                {"steps", t.steps},
                                {"ms", kMs * t.seconds},
                                {"best_ms", kMs * t.best_seconds},
                                {"copies_ms", kMs * t.copies},
                                {"outside_ms", kMs * t.outside},
                                {"contractions_ms", kMs * t.contractions},
                                {"flops", t.flops},
                                {"matmul_peak_share", share(t.flops_peak_time, t.seconds)},
                                {"kernels", rows_json(t.kernels, false)},
                                {"shapes", rows_json(t.shapes, true)}});
  }
  return dump(json, 1);
}

std::string profile_trace(const Profiler& profiler) {
  Json events = Json::array();
  size_t thread = 0;
  for (const auto& profile : profiler.programs()) {
    ++thread;  // a row of the view for each program
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", 1},
                      {"tid", thread},
                      {"args", {{"name", profile->name()}}}});
    for (const ProgramProfile::Run& run : profile->traced()) {
      add_run(events, *profile, run, thread);
    }
  }
  return dump({{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}, -1);
}

}  // namespace halfnote
