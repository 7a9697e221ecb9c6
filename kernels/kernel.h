// The contract between the plan and the kernels. A kernel knows tensors and attributes, never a
// graph.
//
// A backend is a table of rows, best first, the plain reference last. Whoever needs a kernel asks
// the rows of an operator in turn: each either prepares a kernel for exactly this call (types,
// shapes, attributes, constants all known) or says why it cannot. Preparation happens once, before
// the first step; `run` allocates nothing.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/attribute.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/shape.h"
#include "base/tensor.h"

namespace halfnote {

/// How the elements of a buffer lie in memory. Only the plan and the kernels speak of it, the graph
/// never does.
struct Layout {
  enum class Kind : uint8_t {
    kPlain,         // row-major, in the order of the shape
    kChannelsLast,  // (N, C, spatial…) stored as (N, spatial…, C)
    kBlocked,       // a library's own blocked format, described by `tag`
    kPadded,        // row-major in `padded`, a shape ≥ the tensor's; the rest is zero
  };
  Kind kind = Kind::kPlain;
  std::string tag;   // of kBlocked: equal tags and shapes mean equal bytes
  Shape padded;      // of kPadded
  size_t bytes = 0;  // of kBlocked and kPadded: room the buffer needs

  friend bool operator==(const Layout&, const Layout&) = default;
};

/// One operand of a call. An absent optional operand has dtype kUndefined.
struct Operand {
  DType dtype = DType::kUndefined;
  Shape shape;
  Layout layout;
  /// The value, if it is known before the first step (axes, target shapes, ratios); else null.
  const Tensor* constant = nullptr;

  bool present() const { return dtype != DType::kUndefined; }
  int64_t size() const { return element_count(shape); }
};

/// Everything about one call of an operator that is known before the first step.
struct KernelCall {
  std::string_view domain;  // "" for ONNX's own operators
  std::string_view op;
  const Attributes* attributes = nullptr;
  std::vector<Operand> inputs;
  std::vector<Operand> outputs;
  int threads = 1;
  bool tf32 = false;  // may a GPU round the f32 operands of products to TF32?
  /// Which of KernelRow::algorithms a library takes for the call; empty: its first suggestion.
  std::string_view algorithm = {};

  bool has_input(size_t index) const { return index < inputs.size() && inputs[index].present(); }
  bool has_output(size_t index) const { return index < outputs.size() && outputs[index].present(); }
};

/// The buffers of one run, in the order of the call's operands; null for an absent operand.
struct KernelBuffers {
  std::span<const std::byte* const> inputs;
  std::span<std::byte* const> outputs;
  std::byte* workspace = nullptr;
  const std::byte* table = nullptr;  // of Kernel::write_table()

  template <class T>
  const T* in(size_t index) const {
    return index < inputs.size() ? reinterpret_cast<const T*>(inputs[index]) : nullptr;
  }
  template <class T>
  T* out(size_t index) const {
    return index < outputs.size() ? reinterpret_cast<T*>(outputs[index]) : nullptr;
  }
};

/// A kernel prepared for one call. `run` may be called from one thread at a time per kernel.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run(const KernelBuffers& buffers) const = 0;

  /// Finishes what `prepare` began, as far as that takes long and can be done for many at once: the
  /// compilation of generated kernels. Called once the plan stands, before the first run.
  virtual void make_ready() const {}

  /// Bytes of scratch memory that `run` needs, 64-byte aligned; nothing in it survives the call.
  virtual size_t workspace_bytes() const { return 0; }
  /// Bytes of the table that `run` reads: where operands lie and how they are shared out. Kernels
  /// of devices have one where there are more operands than a launch takes as arguments.
  virtual size_t table_bytes() const { return 0; }
  /// Writes the table for these operands, 64-byte aligned, into memory of the host. Whoever runs
  /// the kernel brings it to the device once; it holds as long as the operands stay where they are.
  virtual void write_table(const KernelBuffers& /*buffers*/, std::byte* /*to*/) const {}
  /// How many nodes run within it, in bodies, and what the one of this number is called.
  virtual int32_t inner_nodes() const { return 0; }
  virtual Place inner_node(int32_t /*number*/) const { return {}; }
  /// May output `output` be written over input `input` (same bytes)? The plan decides whether it
  /// is.
  virtual bool can_share(size_t /*input*/, size_t /*output*/) const { return false; }
  /// Is output 0 just input 0, or its first bytes, under another shape? Then the plan lets both
  /// share one buffer and skips the run.
  virtual bool is_view() const { return false; }
  /// Is output 0 the bytes of input 0, and zeros behind them? Then the plan skips the run where
  /// zeros are there anyway: behind a state that has room for them.
  virtual bool appends_zeros() const { return false; }
};

/// A prepared kernel, or the reason for having none.
struct Prepared {
  std::unique_ptr<Kernel> kernel;
  std::string refusal;

  static Prepared yes(std::unique_ptr<Kernel> kernel) { return {std::move(kernel), {}}; }
  static Prepared no(std::string reason) { return {nullptr, std::move(reason)}; }
  explicit operator bool() const { return kernel != nullptr; }
};

/// How calls that the same row takes become one kernel. The operands of a group are those of all
/// its calls, one call behind the other.
struct GroupForm {
  /// So many inputs of a call are its own; those before and behind them are the same values in all
  /// calls.
  size_t own_inputs = 0;
  /// The attributes of all calls are equal but for `own_attribute`, and so is the type of the first
  /// input of their own.
  Prepared (*prepare)(std::span<const KernelCall> calls) = nullptr;
  std::string_view own_attribute = {};
  size_t shared_before = 0;
};

/// When a row takes a call that another row takes, too.
enum class RowUse : uint8_t {
  kFast,
  kFallback,  // only where no other does: it is never measured against them
};

struct KernelRow {
  std::string_view domain;
  std::string_view op;
  std::string_view name;  // `reference`, `onednn.matmul`, …
  Prepared (*prepare)(const KernelCall& call);
  GroupForm group = {};  // without `prepare` if each call is on its own
  RowUse use = RowUse::kFast;
  /// The names of a library's algorithms for a call that `prepare` takes, best first as the library
  /// believes: each with the same bits on every run, and as exact as the others. The same name
  /// stands for the same algorithm in every process with the same hardware and version of the
  /// library. `prepare` throws Error(kUsage) for a KernelCall::algorithm that the library does not
  /// take. Null: there is nothing to choose.
  std::vector<std::string> (*algorithms)(const KernelCall& call) = nullptr;
  bool alone = false;  // it uses memory of its library's handle: one at a time
};

/// One reason why a candidate row was passed over.
struct Refusal {
  std::string_view kernel;
  std::string reason;
};

/// What a table answers: the chosen row and kernel, and why the better rows said no.
struct KernelChoice {
  const KernelRow* row = nullptr;
  std::unique_ptr<Kernel> kernel;
  std::vector<Refusal> refusals;
  std::string algorithm;  // that the kernel was prepared with (KernelCall::algorithm)
};

/// The rows of a backend, in the order of preference, indexed by operator.
class KernelTable {
 public:
  explicit KernelTable(std::vector<KernelRow> rows);
  /// The first row that accepts the call. `only` restricts to rows whose name starts with it
  /// (tests, --kernels).
  KernelChoice choose(const KernelCall& call, std::string_view only = {}) const;
  std::span<const KernelRow> rows() const { return rows_; }
  /// The rows of one operator, best first.
  std::vector<const KernelRow*> rows_of(std::string_view domain, std::string_view op) const;

 private:
  std::vector<KernelRow> rows_;  // grouped by operator, each group in the order of preference
};

/// The kernels of the CPU: oneDNN rows where they accept, then the reference.
const KernelTable& cpu_kernels();

}  // namespace halfnote
