// The gradient of a Scan is a Scan that runs backwards over what the forward one met.
//
//   s, y = Scan (s0, x) {s2, y1 = f(s1, x1, w)}
//     ──▶   s, y, saved = Scan (s0, x) {s2, y1 = f(s1, x1, w); saved1 = s1}
//           ds0, dw, dx = Scan (ds, 0, saved, x, dy) {
//             s2, y1 = f(saved1, x1, w) again; gradients: ds1, dw1, dx1
//             carried: ds1, dw + dw1; scanned: dx1}
//
// The forward Scan saves the carried values at the start of each trip, as far as the body's
// gradient reads them; all else of a trip is computed again. Directions are turned, axes stay.
#include "base/error.h"
#include "compiler/ir/walk.h"
#include "compiler/ops/control/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::control {
namespace {

class ScanGradient {
 public:
  explicit ScanGradient(GradientContext& rule)
      : rule_(rule), g_(rule.graph()), forward_(body_of(g_, rule.node, "body")) {
    const Attributes& attributes = rule.attributes();
    scans_ = static_cast<size_t>(attributes.get_int("num_scan_inputs", 0));
    own_ = g_.inputs(rule.node).size();
    if (scans_ < 1 || scans_ > own_ || g_.inputs(forward_).size() != own_) {
      throw Error(ErrorCode::kModel, "wrong number of scan inputs")
          .expected("1 to " + std::to_string(own_), std::to_string(scans_));
    }
    carried_ = own_ - scans_;
    results_ = g_.outputs(forward_).size() - carried_;
    input_axes_ = of_all("scan_input_axes", scans_);
    input_turns_ = of_all("scan_input_directions", scans_);
    output_axes_ = of_all("scan_output_axes", results_);
    output_turns_ = of_all("scan_output_directions", results_);
  }

  std::vector<Expr> run() {
    refuse_random(g_, forward_);
    region_ = g_.add_region(rule_.b.insert_point().region);
    add_carried_gradients();
    add_sums();
    copy_forward();
    differentiate();
    drop_unread();
    save_carried();
    return make_node();
  }

 private:
  /// A carried value, sum or scanned tensor of the backward Scan.
  struct Operand {
    Expr value;      // given to the node; invalid until known
    ValueId inside;  // input of the body
    int64_t axis = 0, turn = 0;
    size_t carried = 0;  // of a saved value: which one
    bool saved = false;
  };

  std::vector<int64_t> of_all(const char* name, size_t count) {
    std::vector<int64_t> values = rule_.attributes().get_ints(name, std::vector<int64_t>(count, 0));
    if (values.size() == count) return values;
    throw Error(ErrorCode::kModel, std::string("wrong length of \"") + name + "\"")
        .expected(std::to_string(count), std::to_string(values.size()));
  }

  bool is_number(ValueId value) const { return is_float(g_.value(value).type.dtype); }
  ValueId formal(size_t i) const { return g_.inputs(forward_)[i]; }

  ValueId add_input(const std::string& name, ValueType type) {
    return g_.add_input(region_, g_.unique_name(g_.label(rule_.node) + "/grad/" + name),
                        std::move(type));
  }

  /// The gradient of a result, or zeros of its shape.
  Expr gradient_or_zeros(size_t output) {
    if (output < rule_.grads.size() && rule_.grads[output].valid()) return rule_.grads[output];
    const Expr like = output < rule_.outputs.size() && rule_.outputs[output].valid()
                          ? rule_.outputs[output]
                          : rule_.inputs[output];
    return zero_gradient(like);
  }

  void add_carried_gradients() {
    for (size_t j = 0; j < carried_; ++j) {
      if (!is_number(formal(j))) continue;
      const Expr initial = gradient_or_zeros(j);
      carried_slots_.push_back(j);
      loop_.push_back({initial, add_input("carried", gradient_type(rule_.inputs[j].type()))});
    }
  }

  void add_sums() {
    for (size_t i = own_; i < rule_.inputs.size(); ++i) {
      if (!rule_.needed[i]) continue;
      const Expr capture = rule_.inputs[i];
      capture_slots_.push_back(i);
      loop_.push_back({zero_gradient(capture), add_input("sum", gradient_type(capture.type()))});
    }
  }

  /// The forward body again, on saved values and the same slices.
  void copy_forward() {
    ValueMap values;
    for (size_t j = 0; j < carried_; ++j) {
      const ValueId saved = add_input("saved", g_.value(formal(j)).type);
      values[formal(j)] = saved;
      wanted_.push_back(saved);
      strips_.push_back({rule_.b.none(), saved, 0, 1, j, true});
    }
    for (size_t k = 0; k < scans_; ++k) {
      const ValueId slice = add_input("slice", g_.value(formal(carried_ + k)).type);
      values[formal(carried_ + k)] = slice;
      wanted_.push_back(slice);
      strips_.push_back({rule_.inputs[carried_ + k], slice, input_axes_[k], 1 - input_turns_[k]});
    }
    for (ValueId id : g_.initializers(forward_)) {
      const Value original = g_.value(id);
      values[id] = g_.add_initializer(region_, original.name, original.tensor);
    }
    const std::vector<NodeId> nodes = g_.nodes(forward_);
    clone_nodes(g_, g_.end(region_), g_, nodes, values,
                {.prefix = g_.label(rule_.node) + "/grad/", .role = Role::kBackward});
    for (ValueId output : g_.outputs(forward_)) {
      const auto found = values.find(output);
      outputs_.push_back(found == values.end() ? output : found->second);
    }
  }

  void differentiate() {
    std::vector<GradientContext::Seed> seeds;
    for (size_t r = 0; r < results_; ++r) {
      const size_t slot = carried_ + r;
      if (slot >= rule_.grads.size() || !rule_.grads[slot].valid()) continue;
      const ValueId inside =
          add_input("slice", gradient_type(g_.value(g_.outputs(forward_)[slot]).type));
      seeds.push_back({outputs_[slot], inside});
      strips_.push_back({rule_.grads[slot], inside, output_axes_[r], 1 - output_turns_[r]});
    }
    const std::vector<ValueId> gradients = gradients_by_rounds(seeds);
    Builder b = body_builder(rule_, region_);
    std::vector<ValueId> results;
    for (size_t j : carried_slots_) results.push_back(or_zeros(b, gradients[j], wanted_[j]));
    drop_sums({gradients.begin() + static_cast<int64_t>(wanted_.size()), gradients.end()});
    size_t next = carried_slots_.size();
    for (size_t c = wanted_.size(); c < gradients.size(); ++c) {
      if (!gradients[c].valid()) continue;
      results.push_back((b.value(loop_[next++].inside) + b.value(gradients[c])).id);
    }
    for (size_t k = 0; k < scans_; ++k) {
      if (!rule_.needed[carried_ + k] || !gradients[carried_ + k].valid()) continue;
      slice_slots_.push_back(k);
      results.push_back(gradients[carried_ + k]);
    }
    set_results(b, region_, std::move(results));
  }

  /// The gradients of the body where those of the results meet what is carried: a carried value
  /// that no result depends on has none. What a round made for the next one to make again is
  /// dropped with all that nobody reads.
  std::vector<ValueId> gradients_by_rounds(const std::vector<GradientContext::Seed>& scanned) {
    std::vector<bool> active;
    for (size_t j : carried_slots_) {
      active.push_back(j < rule_.grads.size() && rule_.grads[j].valid());
    }
    std::vector<ValueId> gradients;
    for (bool grows = true; grows;) {
      std::vector<GradientContext::Seed> seeds;
      for (size_t i = 0; i < active.size(); ++i) {
        if (active[i]) seeds.push_back({outputs_[carried_slots_[i]], loop_[i].inside});
      }
      seeds.insert(seeds.end(), scanned.begin(), scanned.end());
      gradients = gradients_of_body(seeds);
      grows = false;
      for (size_t i = 0; i < active.size(); ++i) {
        if (active[i] || !gradients[carried_slots_[i]].valid()) continue;
        active[i] = grows = true;
      }
    }
    for (size_t i = active.size(); i > 0; --i) {
      if (active[i - 1]) continue;
      const auto at = static_cast<int64_t>(i - 1);
      g_.remove_value(loop_[i - 1].inside);
      loop_.erase(loop_.begin() + at);
      carried_slots_.erase(carried_slots_.begin() + at);
    }
    return gradients;
  }

  /// Captures to which no trip adds anything have no gradient, rather than one of zeros.
  void drop_sums(const std::vector<ValueId>& added) {
    const size_t first = carried_slots_.size();
    for (size_t c = added.size(); c > 0; --c) {
      if (added[c - 1].valid()) continue;
      const auto at = static_cast<int64_t>(c - 1);
      const auto sum = loop_.begin() + static_cast<int64_t>(first) + at;
      g_.remove_value(sum->inside);
      loop_.erase(sum);
      capture_slots_.erase(capture_slots_.begin() + at);
    }
  }

  /// The gradients of the inputs of the copied body, then of the captures; only those that count
  /// are asked for.
  std::vector<ValueId> gradients_of_body(const std::vector<GradientContext::Seed>& seeds) {
    std::vector<ValueId> all = wanted_;
    for (size_t slot : capture_slots_) all.push_back(rule_.inputs[slot].id);
    std::vector<ValueId> asked;
    std::vector<size_t> places;
    for (size_t i = 0; i < all.size(); ++i) {
      const bool counts = i < carried_ || i >= own_ || rule_.needed[i];
      if (!is_number(all[i]) || !counts) continue;
      asked.push_back(all[i]);
      places.push_back(i);
    }
    const std::vector<ValueId> found = rule_.differentiate(region_, seeds, asked);
    std::vector<ValueId> gradients(all.size());
    for (size_t i = 0; i < found.size(); ++i) gradients[places[i]] = found[i];
    return gradients;
  }

  static ValueId or_zeros(Builder& b, ValueId gradient, ValueId like) {
    if (gradient.valid()) return gradient;
    return zero_gradient(b.value(like)).id;
  }

  /// Copies that only the results of the forward body needed go, and inputs that nobody reads then.
  void drop_unread() {
    const std::vector<NodeId> nodes = g_.nodes(region_);
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
      bool used = false;
      for (ValueId output : g_.outputs(*node)) used |= output.valid() && g_.has_uses(output);
      if (!used) g_.remove(*node);
    }
    std::erase_if(strips_, [&](const Operand& strip) {
      // A Scan needs one scanned operand, which tells the number of trips.
      if (g_.has_uses(strip.inside) || (!strip.saved && strip.inside == wanted_[carried_]))
        return false;
      g_.remove_value(strip.inside);
      return true;
    });
  }

  /// Lets the forward Scan give the carried values at the start of each trip.
  void save_carried() {
    Attributes& attributes = g_.node(rule_.node).attributes;
    std::vector<int64_t> axes = output_axes_, turns = output_turns_;
    std::vector<Operand*> saved;
    for (Operand& strip : strips_) {
      if (!strip.saved) continue;
      Builder b(g_, g_.end(forward_), rule_.infer);
      b.set_role(g_.node(rule_.node).role);
      b.set_origin(g_.label(rule_.node));
      b.set_prefix(g_.label(rule_.node) + "/");
      g_.add_output(forward_, b.op("Identity", {b.value(formal(strip.carried))}).id);
      axes.push_back(0);
      turns.push_back(0);
      const size_t index = g_.outputs(forward_).size() - 1;
      const std::string name =
          g_.unique_name(g_.label(rule_.node) + "/saved/" + g_.value(formal(strip.carried)).name);
      strip.value = rule_.b.value(g_.add_node_output(rule_.node, index, name));
      saved.push_back(&strip);
    }
    if (saved.empty()) return;
    attributes.set("scan_output_axes", axes);
    attributes.set("scan_output_directions", turns);
    rule_.infer(g_, rule_.node);
  }

  std::vector<Expr> make_node() {
    std::vector<Expr> operands;
    std::vector<int64_t> axes, turns, out_axes, out_turns;
    for (const Operand& operand : loop_) operands.push_back(operand.value);
    for (const Operand& strip : strips_) {
      operands.push_back(strip.value);
      axes.push_back(strip.axis);
      turns.push_back(strip.turn);
    }
    for (size_t k : slice_slots_) {
      out_axes.push_back(input_axes_[k]);
      out_turns.push_back(1 - input_turns_[k]);
    }
    const size_t count = loop_.size() + slice_slots_.size();
    std::vector<Expr> results(rule_.inputs.size(), rule_.b.none());
    if (count == 0) {
      discard_body();
      return results;
    }
    Attributes attributes{{"body", region_},
                          {"num_scan_inputs", static_cast<int64_t>(strips_.size())},
                          {"scan_input_axes", axes},
                          {"scan_input_directions", turns}};
    if (!slice_slots_.empty()) {
      attributes.set("scan_output_axes", out_axes);
      attributes.set("scan_output_directions", out_turns);
    }
    const std::vector<Expr> made =
        rule_.b.ops("Scan", operands, static_cast<int>(count), std::move(attributes));
    size_t next = 0;
    const auto give = [&](size_t slot) {
      g_.value(made[next].id).type = gradient_type(rule_.inputs[slot].type());
      results[slot] = made[next++];
    };
    for (size_t j : carried_slots_) give(j);
    for (size_t slot : capture_slots_) give(slot);
    for (size_t k : slice_slots_) give(carried_ + k);
    return results;
  }

  /// Nothing has a gradient: the copy of the body goes.
  void discard_body() {
    g_.set_outputs(region_, {});
    const std::vector<NodeId> nodes = g_.nodes(region_);
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) g_.remove(*node);
    for (ValueId value : g_.initializers(region_)) g_.remove_value(value);
    while (!g_.inputs(region_).empty()) g_.remove_value(g_.inputs(region_).back());
  }

  GradientContext& rule_;
  Graph& g_;
  RegionId forward_, region_;
  size_t scans_ = 0, own_ = 0, carried_ = 0, results_ = 0;
  std::vector<int64_t> input_axes_, input_turns_, output_axes_, output_turns_;
  std::vector<Operand> loop_, strips_;
  std::vector<size_t> carried_slots_, capture_slots_, slice_slots_;
  std::vector<ValueId> wanted_;   // inputs of the copied body
  std::vector<ValueId> outputs_;  // its outputs
};

}  // namespace

std::vector<Expr> scan_gradient(GradientContext& rule) { return ScanGradient(rule).run(); }

}  // namespace halfnote::control
