// Nodes with bodies on a device: the CPU's numbers, whichever branch is asked for, and nothing of
// the other one.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/error.h"
#include "compiler/ir/query.h"
#include "compiler/ir/text.h"
#include "kernels/cuda/emulation/emulator.h"
#include "runtime/train/session.h"
#include "tests/cuda/harness/device_check.h"

namespace halfnote {
namespace {

struct ControlCase {
  const char* name;
  const char* op;    // that stands in the step
  const char* core;  // from h to t, (4, 6) both
};

void PrintTo(const ControlCase& c, std::ostream* out) { *out << c.name; }

#define HN_IS_POSITIVE                            \
  "  mean = ReduceMean <keepdims: int = 0> (x)\n" \
  "  c = Greater (mean, zero)\n"

constexpr ControlCase kCases[] = {
    {"If", "If", HN_IS_POSITIVE R"(
  t = If <then_branch: graph = a () => (p) { m = MatMul (h, u) p = Tanh (m) },
          else_branch: graph = b () => (q) { n = Add (h, bias) q = Sigmoid (n) }> (c)
)"},
    // Views, copies and constants as results; results of several types and sizes; none of them.
    {"IfOfManyResults", "If", HN_IS_POSITIVE R"(
  t1, s, k, none = If <
      then_branch: graph = a () => (p, r, i, e) {
        p = Identity (h) r = ReduceSum <keepdims: int = 0> (h)
        i = Constant <value: tensor = int64[3] {4, 1, 2}> () e = Slice (h, one, one) },
      else_branch: graph = b () => (q, r2, i2, e2) {
        q = Constant <value: tensor = float[4,6] {1,2,3,4,5,6,1,2,3,4,5,6,1,2,3,4,5,6,1,2,3,4,5,6}> ()
        r2 = ReduceMax <keepdims: int = 0> (h)
        i2 = Constant <value: tensor = int64[3] {7, 7, 7}> () e2 = Slice (h, two, two) }> (c)
  f = Cast <to: int = 1> (k)
  f1 = ReduceMean <keepdims: int = 0> (f)
  e1 = ReduceSum <keepdims: int = 0> (none)
  a1 = Add (t1, s)
  a2 = Add (a1, e1)
  t = Mul (a2, f1)
)"},
    {"IfInIf", "If", HN_IS_POSITIVE R"(
  t = If <then_branch: graph = a () => (p) {
            sum = ReduceMax <keepdims: int = 0> (h)
            d = Less (sum, zero)
            p = If <then_branch: graph = aa () => (pp) { pp = Tanh (h) },
                    else_branch: graph = ab () => (pq) { pm = MatMul (h, u) pq = Add (pm, bias) }> (d)
          },
          else_branch: graph = b () => (q) { q = Sigmoid (h) }> (c)
)"},
    // NaN and infinities in what is not asked for, forwards and backwards.
    {"IfThatGuards", "If", HN_IS_POSITIVE R"(
  t = If <then_branch: graph = a () => (p) { l = Log (x) g = Sqrt (x) m = Div (l, g) p = Mul (m, h) },
          else_branch: graph = b () => (q) { y = Neg (x) l = Log (y) q = Mul (l, h) }> (c)
)"},
    {"Scan", "Scan", R"(
  last, t = Scan <num_scan_inputs: int = 1, body: graph = s (float[6] r, float[6] e) => (r2, o) {
              m = MatMul (r, u) a = Add (m, e) r2 = Tanh (a) o = Mul (r2, bias) }> (bias, h)
)"},
    {"ScanOfColumnsBackwards", "Scan", R"(
  turned = Transpose (h)
  last, z = Scan <num_scan_inputs: int = 1, scan_input_axes: ints = [1],
                  scan_input_directions: ints = [1], scan_output_axes: ints = [1],
                  body: graph = s (float[6] r, float[6] e) => (r2, o) {
              a = Add (r, e) r2 = Tanh (a) o = Mul (r2, r) }> (bias, turned)
  t = Transpose (z)
)"},
    {"IfInScan", "Scan", R"(
  last, t = Scan <num_scan_inputs: int = 1, body: graph = s (float[6] r, float[6] e) => (r2, o) {
              v = ReduceMean <keepdims: int = 0> (e)
              d = Greater (v, zero)
              r2 = If <then_branch: graph = a () => (p) { p = Mul (r, e) },
                       else_branch: graph = b () => (q) { q1 = Add (r, e) q = Tanh (q1) }> (d)
              o = Mul (r2, bias) }> (bias, h)
)"},
    {"Loop", "Scan", R"(
  shape = Shape (x)
  trips = Gather (shape, at)
  t = Loop <body: graph = l (int64 i, bool go, float[N,6] r) => (go2, r2) {
              go2 = Identity (go) m = MatMul (r, u) a = Add (m, h) r2 = Tanh (a) }> (trips, , h)
)"},
};

std::string numbers(const char* name, int rows, int columns) {
  std::mt19937 engine(5);
  std::string text = "float[" + std::to_string(rows) + "," + std::to_string(columns) + "] " + name;
  for (int i = 0; i < rows * columns; ++i) {
    text += (i == 0 ? " = {" : ", ") + std::to_string(engine() * 0x1p-32 - 0.5);
  }
  return text + "}";
}

Session session_of(const std::string& core, const std::string& device, DType precision) {
  const std::string text =
      "<ir_version: 10, opset_import: [\"\" : 23]>\nnet (float[N,6] x) => (float[N,6] y) <" +
      numbers("w", 6, 6) + ", " + numbers("u", 6, 6) + ", " + numbers("v", 6, 6) +
      ", float[6] bias = {0.1, 0.2, -0.1, 0.3, 0.5, -0.2}, "
      "float zero = {0}, int64 at = {0}, int64[1] one = {1}, int64[1] two = {2}> {\n"
      "  h = MatMul (x, w)\n" +
      core + "  y = MatMul (t, v)\n}";
  CompileOptions options;
  options.policy.dtype = precision;
  options.train.loss = "mse";
  options.train.optimizer.kind = "sgd";
  SessionOptions on;
  on.device = device;
  on.threads = 1;
  return Session(compile_model(parse_model(text, "control.onnxtxt"), options).model, on);
}

/// All elements of x of one sign.
std::vector<Tensor> batch_of(const Session& session, double sign, double size = 1) {
  std::vector<Tensor> inputs;
  std::mt19937 engine(7);
  for (const auto& [name, type] : session.inputs()) {
    Tensor tensor(DType::kF64, {4, 6});
    for (double& x : tensor.mutable_data<double>()) x = sign * size * (0.1 + engine() * 0x1p-32);
    inputs.push_back(tensor.cast_to(type.dtype));
  }
  return inputs;
}

class DeviceControl : public ::testing::TestWithParam<ControlCase> {};

TEST_P(DeviceControl, TrainsAsOnTheCpu) {
  // Steps of 16 bits turn on single roundings: sums are added in another order.
  for (const auto& [precision, bar] :
       {std::pair(DType::kF32, 2e-5), {DType::kBF16, 0x1p-6}, {DType::kF16, 0x1p-9}}) {
    SCOPED_TRACE(short_name(precision));
    Session cpu = session_of(GetParam().core, "cpu", precision);
    Session device = session_of(GetParam().core, test::tested_device(), precision);
    EXPECT_FALSE(find_nodes(device.model().training.front().graph, GetParam().op).empty());
    for (const double sign : {1, -1, 1}) {
      const std::vector<Tensor> inputs = batch_of(cpu, sign);
      const double wanted = cpu.step(inputs).loss, got = device.step(inputs).loss;
      EXPECT_TRUE(std::isfinite(got));
      EXPECT_NEAR(got, wanted, bar * std::fabs(wanted)) << "sign " << sign;
    }
    EXPECT_EQ(device.applied_steps(), cpu.applied_steps());
    for (const StateEntry& entry : cpu.state().entries()) {
      if (entry.kind != StateKind::kWeight) continue;
      const Tensor wanted = cpu.state().get(entry);
      const Tensor got = device.state().get(*device.state().find(entry.name));
      for (int64_t i = 0; i < wanted.size(); ++i) {
        ASSERT_NEAR(got.at_as_double(i), wanted.at_as_double(i), bar) << entry.name;
      }
    }
  }
}

TEST_P(DeviceControl, OrderOfThreadsChangesNothing) {
  std::vector<double> losses;
  for (const uint64_t seed : {1, 2, 3}) {
    emulation::set_emulation_seed(seed);
    Session session = session_of(GetParam().core, test::tested_device(), DType::kBF16);
    session.step(batch_of(session, 1));
    session.step(batch_of(session, -1));
    losses.push_back(session.step(batch_of(session, 1)).loss);
  }
  emulation::set_emulation_seed(1);
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[0], losses[2]);
}

INSTANTIATE_TEST_SUITE_P(All, DeviceControl, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

/// Takes row ⌊100·mean⌋ of x if the condition holds.
std::string row_if(const std::string& condition) {
  return R"(
  mean = ReduceMean <keepdims: int = 0> (x)
  hundred = Constant <value: tensor = float {100}> ()
  far = Mul (mean, hundred)
  place = Cast <to: int = 7> (far)
  limit = Constant <value: tensor = int64 {4}> ()
  start = Constant <value: tensor = int64 {0}> ()
  c = )" +
         condition + R"( (place, limit)
  row = If <then_branch: graph = a () => (p) { p = Gather (h, place) },
            else_branch: graph = b () => (q) { q = Gather (h, start) }> (c)
  t = Add (h, row)
)";
}

TEST(DeviceFaults, OfTheBranchThatWasNotAskedForAreNone) {
  Session cpu = session_of(row_if("Less"), "cpu", DType::kF32);
  Session device = session_of(row_if("Less"), test::tested_device(), DType::kF32);
  for (const double size : {1.0, 0.01, 1.0}) {
    const std::vector<Tensor> inputs = batch_of(cpu, 1, size);
    const double wanted = cpu.step(inputs).loss;
    EXPECT_NEAR(device.step(inputs).loss, wanted, 1e-5 * wanted);
  }
}

TEST(DeviceFaults, OfTheBranchThatWasAskedForAreErrors) {
  Session device = session_of(row_if("Greater"), test::tested_device(), DType::kF32);
  EXPECT_NO_THROW(device.step(batch_of(device, 1, 0.01)));
  try {
    device.step(batch_of(device, 1));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kData);
  }
}

/// What a step on ids of this value ends with, on this device; a bool `then` is fed too.
std::string fault_of(const std::string& text, const std::string& device, int64_t id) {
  CompileOptions options;
  options.train.loss_outputs = {"l"};
  SessionOptions on;
  on.device = device;
  Session session(compile_model(parse_model(text, "faults"), options).model, on);
  std::vector<Tensor> inputs;
  for (const auto& [name, type] : session.inputs()) {
    const double value = type.dtype == DType::kBool ? 1 : static_cast<double>(id);
    inputs.push_back(Tensor::full(type.dtype, concrete(*type.shape), value));
  }
  try {
    session.step(inputs);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kData);
    return error.what();
  }
  return "none";
}

constexpr const char* kFaultHeader = "<ir_version: 10, opset_import: [\"\" : 17]> faults ";

TEST(DeviceFaults, NameTheNodeInABranchOfABranch) {
  const std::string text =
      std::string(kFaultHeader) +
      "(int64[4] ids, bool b) => (float l) <float[3,2] w = {1, 2, 3, 4, 5, 6}, float[9,2] v = {1, "
      "2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9}> { i = Mul (ids, ids)"
      " r = If (b) <then_branch = g () => (float[4,2] t) { [wide] f = Gather (v, i)"
      " [again] t = If (b) <then_branch = gg () => (float[4,2] tt) { [deep] n = Gather (w, i)"
      " tt = Add (n, f) }, else_branch = gh () => (float[4,2] te) { te = Identity (f) }> },"
      " else_branch = h () => (float[4,2] e) { [other] e = Gather (w, i) }>"
      " l = ReduceMean <keepdims = 0> (r) }";
  EXPECT_EQ(fault_of(text, test::tested_device(), 1), "none");
  for (const int64_t id : {2, 5}) {
    const std::string told = fault_of(text, test::tested_device(), id);
    EXPECT_EQ(told, fault_of(text, "cpu", id));
    EXPECT_NE(told.find(id == 2 ? "node \"deep\" (Gather)" : "node \"wide\" (Gather)"),
              std::string::npos)
        << told;
  }
}

/// A body of so many nodes that its trips are not written out.
TEST(DeviceFaults, NameTheNodeInAScan) {
  std::string chain = "n0 = Neg (c)";
  for (int k = 1; k < 64; ++k)
    chain += " n" + std::to_string(k) + " = Neg (n" + std::to_string(k - 1) + ")";
  const std::string text =
      std::string(kFaultHeader) +
      "(int64[70] ids) => (float l) <float[3] w = {1, 2, 3}, float start = {1}>"
      " { i = Mul (ids, ids) z, e = Scan <num_scan_inputs = 1, body = b (float c, int64 k) => "
      "(float "
      "d, float r) { [inner] g = Gather (w, k) " +
      chain +
      " d = Identity (n63) r = Mul (g, d) }> (start, i) l = ReduceMean <keepdims = 0> (e) }";
  EXPECT_EQ(fault_of(text, test::tested_device(), 1), "none");
  const std::string told = fault_of(text, test::tested_device(), 2);
  EXPECT_EQ(told, fault_of(text, "cpu", 2));
  EXPECT_NE(told.find("node \"inner\" (Gather)"), std::string::npos) << told;
}

TEST(DeviceRefusals, NameTheNodeInTheBody) {
  // Four spatial dims are more than any kernel has.
  const std::string core = HN_IS_POSITIVE R"(
  deep = Constant <value_ints: ints = [1, 1, 2, 2, 2, 3]> ()
  flat = Constant <value_ints: ints = [4, 6]> ()
  t = If <then_branch: graph = a () => (p) {
            r = Reshape (h, deep)
            m = MaxPool <kernel_shape: ints = [1, 1, 1, 3], pads: ints = [0, 0, 0, 1, 0, 0, 0, 1]> (r)
            p = Reshape (m, flat) },
          else_branch: graph = b () => (q) { q = Neg (h) }> (c)
)";
  try {
    Session device = session_of(core, test::tested_device(), DType::kF32);
    device.step(batch_of(device, 1));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
    EXPECT_NE(std::string(error.what()).find("node \"m\" (MaxPool): no kernel on this device"),
              std::string::npos)
        << error.what();
  }
}

/// A stream of the device under test, with `bytes` of memory twice.
struct Place {
  explicit Place(size_t bytes)
      : device(test::open_tested_device()),
        stream(device->make_stream()),
        from(device->allocate(bytes + 64)),
        to(device->allocate(bytes + 64)) {}
  std::shared_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  Device::Memory from, to;
};

std::vector<std::byte> counting(size_t bytes) {
  std::vector<std::byte> values(bytes);
  for (size_t i = 0; i < bytes; ++i) values[i] = static_cast<std::byte>(i * 7 + i / 251);
  return values;
}

TEST(DeviceStream, CopiesUnderACondition) {
  for (const size_t bytes : {0, 1, 15, 16, 17, 64, 4099, 70001}) {
    for (const size_t offset : {0, 4, 1}) {
      for (const bool holds : {false, true}) {
        Place place(bytes);
        const std::vector<std::byte> values = counting(bytes + 64);
        std::vector<std::byte> got(bytes + 64);
        const Device::Memory condition = place.device->allocate(1);
        Stream& stream = *place.stream;
        const bool yes = true;
        stream.copy(condition.get(), &yes, 1);
        stream.copy(place.from.get(), values.data(), values.size());
        stream.fill(place.to.get(), 0, got.size());
        stream.copy_if({condition.get(), holds}, place.to.get() + offset, place.from.get() + offset,
                       bytes);
        stream.copy(got.data(), place.to.get(), got.size());
        stream.synchronise();
        for (size_t i = 0; i < got.size(); ++i) {
          const bool copied = holds && i >= offset && i < offset + bytes;
          ASSERT_EQ(got[i], copied ? values[i] : std::byte{0}) << bytes << " bytes, byte " << i;
        }
      }
    }
  }
}

TEST(DeviceStream, CopiesBlocks) {
  struct Blocks {
    size_t bytes, blocks, from_apart, to_apart;
  };
  for (const Blocks& b : {Blocks{1, 1, 1, 1},
                          {3, 5, 7, 3},
                          {16, 300, 32, 16},
                          {6, 100, 6, 10},
                          {4, 70000, 4, 8},
                          {0, 9, 4, 4},
                          {64, 0, 64, 64}}) {
    const size_t room = std::max(b.from_apart, b.to_apart) * b.blocks + b.bytes;
    Place place(room);
    const std::vector<std::byte> values = counting(room);
    std::vector<std::byte> got(room), wanted(room);
    for (size_t i = 0; i < b.blocks && b.bytes > 0; ++i)
      std::memcpy(wanted.data() + i * b.to_apart, values.data() + i * b.from_apart, b.bytes);
    Stream& stream = *place.stream;
    stream.copy(place.from.get(), values.data(), room);
    stream.fill(place.to.get(), 0, room);
    stream.copy_blocks(
        {place.to.get(), b.to_apart, place.from.get(), b.from_apart, b.bytes, b.blocks});
    stream.copy(got.data(), place.to.get(), room);
    stream.synchronise();
    EXPECT_EQ(got, wanted) << b.blocks << " blocks of " << b.bytes;
  }
}

}  // namespace
}  // namespace halfnote
