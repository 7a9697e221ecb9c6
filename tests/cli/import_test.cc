// What the verbs do with model files: limits and their flags, what is told of odd files, names that
// want to steer the terminal, and that one run tells everything that is missing.
#include <map>
#include <nlohmann/json.hpp>

#include "base/text/printable.h"
#include "compiler/ir/text.h"
#include "compiler/onnx/export.h"
#include "tests/cli/support.h"

namespace halfnote::cli_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kHead = "<ir_version: 10, opset_import: [\"\" : 23]>\n";

/// Two nodes, an initializer of 64 floats and rank 2.
std::string small_model() {
  std::string text = std::string(kHead) + "g (float[2,8] x) => (float[2,8] y) <float[8,8] w = {0";
  for (int i = 1; i < 64; ++i) text += ", " + std::to_string(i);
  return text + "}> { h = MatMul (x, w) y = Relu (h) }";
}

/// Nothing that a terminal would act on, line by line.
void expect_tame(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    EXPECT_EQ(line, printable(line));
    at = end + 1;
  }
}

TEST(ImportFlags, LimitsHoldExactly) {
  const Workplace place;
  place.write("m.onnxtxt", small_model());
  const std::pair<const char*, int> exact[] = {
      {"--max-nodes", 2},         {"--max-node-operands", 2}, {"--max-initializers", 1},
      {"--max-graph-nesting", 1}, {"--max-type-nesting", 1},  {"--max-name-bytes", 6},
      {"--max-rank", 2},          {"--max-dim", 8},           {"--max-elements", 64}};
  for (const auto& [flag, limit] : exact) {
    SCOPED_TRACE(flag);
    EXPECT_EQ(place.run({"inspect", "m.onnxtxt", flag, std::to_string(limit)}).code, 0);
    if (limit == 1) continue;  // no file would do with less
    for (const char* verb : {"inspect", "compile"}) {
      const Outcome over = place.run({verb, "m.onnxtxt", flag, std::to_string(limit - 1)});
      EXPECT_EQ(over.code, 3) << over.err;
      EXPECT_THAT(over.err, HasSubstr("over the limit"));
    }
  }
}

TEST(ImportFlags, BeyondWhatTheReadersCanIsAUsageError) {
  const Workplace place;
  for (const char* flag :
       {"--max-rank 9", "--max-graph-nesting 65", "--max-nodes 0", "--max-dim 1099511627777",
        "--max-file-bytes 2147483648", "--allow-dir none"}) {
    const Outcome outcome = place.run(words(std::string("inspect tiny.onnxtxt ") + flag));
    EXPECT_EQ(outcome.code, 2) << flag << outcome.err;
  }
}

TEST(Import, OddFilesAreTold) {
  const Workplace place;
  export_model(parse_model(small_model(), "m"), place / "m.onnx",
               {.external = ExternalTensors::kAlways, .external_threshold = 1});
  EXPECT_EQ(place.run(words("inspect m.onnx")).err, "");
  fs::create_hard_link(place / "m.onnx.data", place / "second");
  const std::string told = "external data \"m.onnx.data\" has more than one name (hard link)\n";
  EXPECT_EQ(place.run(words("inspect m.onnx")).err, "warning: " + told);
  const Outcome compiled = place.run(words("compile m.onnx --inference -o a.onnx --report r.json"));
  EXPECT_EQ(compiled.code, 0) << compiled.err;
  EXPECT_EQ(compiled.err, "warning: m.onnx: " + told);
  const auto report = nlohmann::json::parse(place.read("r.json"));
  EXPECT_EQ(report["remarks"][0]["pass"], "import");
  EXPECT_EQ(place.run(words("compile m.onnx --inference -o a.onnx --quiet")).err, "");
}

TEST(Import, AllowedFoldersMayBeLinkedTo) {
  const Workplace place;
  export_model(parse_model(small_model(), "m"), place / "m.onnx",
               {.external = ExternalTensors::kAlways, .external_threshold = 1});
  fs::create_directory(place / "blobs");
  fs::rename(place / "m.onnx.data", place / "blobs/1");
  fs::create_symlink("blobs/1", place / "m.onnx.data");
  const Outcome refused = place.run(words("inspect m.onnx"));
  EXPECT_EQ(refused.code, 3) << refused.err;
  for (const char* verb : {"inspect m.onnx", "compile m.onnx --inference -o a.onnx"}) {
    const Outcome allowed = place.run(words(std::string(verb) + " --allow-dir blobs"));
    EXPECT_EQ(allowed.code, 0) << allowed.err;
  }
}

TEST(Import, NamesCannotSteerTheTerminal) {
  const Workplace place;
  // A screen wiped, a title set, a line forged, C1, and writing turned round.
  const std::string evil =
      "\\x1b[2J\\x1b]0;t\\x07\\x0anote: all is well\\xc2\\x9b31m\\xe2\\x80\\xae";
  place.write(
      "m.onnxtxt", "<ir_version: 10, opset_import: [\"\" : 23], producer_name: \"p" + evil +
                       "\">\n\"g" + evil + "\" (float[2,8] \"x" + evil + "\") => (float[2,8] \"y" +
                       evil + "\") <float[8,8] \"w" + evil + "\" = {1" +
                       [] {
                         std::string rest;
                         for (int i = 1; i < 64; ++i) rest += ", 1";
                         return rest;
                       }() +
                       "}, float[1] \"unused" + evil + "\" = {1}> { [\"n" + evil + "\"] \"y" +
                       evil + "\" = MatMul (\"x" + evil + "\", \"w" + evil + "\") }");
  const Outcome compiled =
      place.run(words("compile m.onnxtxt -o a.onnx --loss mse --precision bf16 --verbose"));
  ASSERT_EQ(compiled.code, 0) << compiled.err;
  expect_tame(compiled.err);
  expect_tame(compiled.out);
  const std::string name =
      "n\x1b[2J\x1b]0;t\x07\nnote: all is well\xc2\x9b"
      "31m\xe2\x80\xae";
  const std::vector<std::vector<std::string>> commands = {
      {"inspect", "m.onnxtxt"},
      {"inspect", "a.onnx"},
      {"inspect", "a.onnx", "--nodes"},
      {"inspect", "a.onnx", "--casts"},
      {"inspect", "a.onnx", "--diff", "m.onnxtxt"},
      {"inspect", "a.onnx", "--why", name},
      {"inspect", "a.onnx", "--format", "text"},
      {"inspect", "a.onnx", "--format", "dot"},
      {"compile", "m.onnxtxt", "--loss-output", "none", "-o", "b.onnx"},
  };
  for (const std::vector<std::string>& command : commands) {
    const Outcome outcome = place.run(command);
    SCOPED_TRACE(testing::PrintToString(command));
    EXPECT_EQ(outcome.code, command[0] == "inspect" ? 0 : 2) << outcome.err;
    expect_tame(outcome.out);
    expect_tame(outcome.err);
    EXPECT_THAT(outcome.out, Not(HasSubstr("\nnote: all is well")));
  }
}

TEST(Import, AllThatIsUnsupportedIsOneError) {
  const Workplace place;
  std::string nodes;
  for (int i = 0; i < 60; ++i) {
    const std::string n = std::to_string(i);
    nodes += "[quux" + n + "] q" + n + " = Quux (x)\n";
  }
  place.write("m.onnxtxt",
              "<ir_version: 10, opset_import: [\"\" : 23, \"com.acme\" : 3]>\n"
              "g (float[2] x) => (float[2] y) {\n" +
                  nodes + "[frob] f = com.acme.Frob (x)\n y = Add (q1, f) }");
  const Outcome outcome = place.run(words("compile m.onnxtxt --loss mse -o a.onnx"));
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("com.acme.Frob (op-set 3; 1 node; "));
  EXPECT_THAT(outcome.err,
              HasSubstr("Quux (op-set 23; 60 nodes; unknown operator): quux0, quux1, "));
  EXPECT_THAT(outcome.err, HasSubstr("quux24, … 10 more …, quux35"));
  EXPECT_THAT(outcome.err, HasSubstr("quux58, quux59"));
  EXPECT_THAT(outcome.err, HasSubstr("others from 1 to "));
  EXPECT_THAT(outcome.err, HasSubstr("--json-errors names all nodes"));
  const Outcome json = place.run(words("--json-errors compile m.onnxtxt --loss mse -o a.onnx"));
  EXPECT_EQ(json.code, 4) << json.err;
  EXPECT_THAT(json.err, HasSubstr(R"("refused":[{"op":"Quux","opset":23,"why":"unknown operator",)"
                                  R"("instead":"","nodes":["quux0","quux1",)"));
  EXPECT_THAT(json.err, HasSubstr(R"("quux24","quux25","quux26",)"));
  EXPECT_THAT(json.err, HasSubstr(R"("quux34","quux35",)"));
  EXPECT_THAT(json.err, HasSubstr(R"({"op":"com.acme.Frob","opset":3,)"));
}

TEST(Import, AnOpWithoutAGradientIsToldWithTheOpSetOfTheModel) {
  const Workplace place;
  place.write("m.onnxtxt", R"(<ir_version: 8, opset_import: ["" : 13]>
g (float[1,1,2,2] x, float[1,5] r) => (float[1,1,2,2] y) <float[1,1,2,2] w = {1.0, 2.0, 3.0, 4.0}> {
    [one] a = MatMul (x, w)
    [hard] y = MaxRoiPool <pooled_shape: ints = [2, 2]> (a, r)
  })");
  const Outcome outcome = place.run(words("compile m.onnxtxt --loss mse -o a.onnx"));
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("MaxRoiPool (op-set 13; 1 node; "));
  EXPECT_THAT(outcome.err, Not(HasSubstr("--json-errors")));  // nothing is left out
}

TEST(Import, UnknownOpsAndThoseWithoutAGradientAreOneList) {
  const Workplace place;
  place.write("m.onnxtxt",
              std::string(kHead) + R"(g (float[1,1,2,2] x, float[1,5] r) => (float[1,1,2,2] y)
  <float[1,1,2,2] w = {1.0, 2.0, 3.0, 4.0}, float[1,1,2,2] v = {1.0, 2.0, 3.0, 4.0}> {
    [before] a = MaxRoiPool <pooled_shape: ints = [2, 2]> (x, r)
    [one] b = MatMul (a, w)
    [hard] c = MaxRoiPool <pooled_shape: ints = [2, 2]> (b, r)
    [odd] d = Sofmax (c)
    [norm] e = com.microsoft.SkipLayerNormalization (d)
    [again] f = MaxRoiPool <pooled_shape: ints = [2, 2]> (e, r)
    [index] i = ArgMax <keepdims: int = 0> (f)
    [rows] y = Gather (v, i)
  })");
  const Outcome outcome = place.run(words("compile m.onnxtxt --loss mse -o a.onnx"));
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  for (const char* part :
       {"2 ops cannot be imported", "Sofmax (op-set 23; 1 node; unknown operator",
        "instead: Softmax): odd", "com.microsoft.SkipLayerNormalization (op-set 1; 1 node; ",
        "instead: Add and LayerNormalization): norm"}) {
    EXPECT_THAT(outcome.err, HasSubstr(part));
  }
  // No gradient flows through the index; the first one has no weight before it.
  EXPECT_THAT(outcome.err, Not(HasSubstr("MaxRoiPool")));

  place.write("n.onnxtxt",
              std::string(kHead) + R"(g (float[1,1,2,2] x, float[1,5] r) => (float[1,1,2,2] y)
  <float[1,1,2,2] w = {1.0, 2.0, 3.0, 4.0}> {
    [before] a = MaxRoiPool <pooled_shape: ints = [2, 2]> (x, r)
    [one] b = MatMul (a, w)
    [hard] c = MaxRoiPool <pooled_shape: ints = [2, 2]> (b, r)
    [odd] d = Sofmax (c)
    [again] e = MaxRoiPool <pooled_shape: ints = [2, 2]> (d, r)
    [end] y = MatMul (e, w)
  })");
  const Outcome both = place.run(words("compile n.onnxtxt --loss mse -o a.onnx"));
  EXPECT_EQ(both.code, 4) << both.err;
  for (const char* part : {"1 op cannot be imported, no gradient for 1 op between the weights",
                           "MaxRoiPool (op-set 23; 2 nodes; ",
                           "instead: RoiAlign): hard, again; Sofmax (op-set 23; 1 node"}) {
    EXPECT_THAT(both.err, HasSubstr(part));
  }
  const Outcome inference = place.run(words("compile n.onnxtxt --inference -o a.onnx"));
  EXPECT_EQ(inference.code, 4) << inference.err;
  EXPECT_THAT(inference.err, Not(HasSubstr("MaxRoiPool")));
}

TEST(Import, TheListNamesNoNodeThatIsFine) {
  // The backward pass comes from the end: it has been through the LSTM and the normalization, and
  // given them the forms that keep more, when it meets the Resize.
  const Workplace place;
  place.write("m.onnxtxt", R"(<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,4,8] x) => (float y)
  <float[4,3,1,1] k = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float[4] sc = {1, 1, 1, 1},
   float[4] bi = {0, 0, 0, 0}, float[4] rm = {0, 0, 0, 0}, float[4] rv = {1, 1, 1, 1},
   float[1,4,8] W = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23,
                     24, 25, 26, 27, 28, 29, 30, 31, 32}, float[1,4,1] R = {1, 2, 3, 4},
   int64[2] first = {0, 1}, int64[2] last = {2, 3}> {
    [conv] c = Conv (x, k)
    s = Shape (c)
    nc = Gather (s, first)
    h = Neg (x)
    big = Concat <axis: int = 1> (h, h)
    t = Shape (big)
    hw = Gather (t, last)
    sizes = Concat <axis: int = 0> (nc, hw)
    [grow] r = Resize <mode: string = "linear"> (c, , , sizes)
    [norm] b, rm2, rv2 = BatchNormalization <training_mode: int = 1> (r, sc, bi, rm, rv)
    q = ReduceMean <axes: ints = [2], keepdims: int = 0> (b)
    p = Transpose <perm: ints = [1, 0, 2]> (q)
    [steps] a, ah, ac = LSTM <hidden_size: int = 1> (p, W, R)
    y = ReduceMean <keepdims: int = 0> (ah)
  })");
  const Outcome outcome =
      place.run(words("compile m.onnxtxt --loss-output y --json-errors -o a.onnx"));
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  const auto error = nlohmann::json::parse(outcome.err);
  ASSERT_EQ(error["refused"].size(), 1u) << outcome.err;
  EXPECT_EQ(error["refused"][0]["op"], "Resize");
  EXPECT_EQ(error["refused"][0]["nodes"], nlohmann::json({"grow"}));
}

TEST(Import, OneListHoldsAllKindsOfReasons) {
  const Workplace place;
  place.write("m.onnxtxt",
              std::string(kHead) + R"(g (float[1,1,2,2] x, float[1,5] r, int64[1] k) => (float y)
  <float[1,1,2,2] w = {1.0, 2.0, 3.0, 4.0}, float zero = {0.0}> {
    [product] a = MatMul (x, w)
    [hard] b = MaxRoiPool <pooled_shape: ints = [2, 2]> (a, r)
    [odd] c = Sofmax (b)
    [mask] d = Greater (a, zero)
    [places] e = NonZero (d)
    [best] f, which = TopK (a, k)
    [sums] g = ReduceSum <keepdims: int = 0> (f)
    [counts] h = ReduceSum <keepdims: int = 0> (e)
    [count] i = Cast <to: int = 1> (h)
    [rest] j = ReduceSum <keepdims: int = 0> (c)
    [loss] y = Sum (g, i, j)
  })");
  const Outcome outcome =
      place.run(words("compile m.onnxtxt --loss-output y --json-errors -o a.onnx"));
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  const auto error = nlohmann::json::parse(outcome.err);
  EXPECT_THAT(error["message"].get<std::string>(),
              HasSubstr("1 op cannot be imported, no gradient for 1 op between the weights and the "
                        "loss, no step can be planned for 2 ops before the loss: "));
  std::map<std::string, nlohmann::json> rows;
  for (const auto& row : error["refused"]) rows[row["op"]] = row;
  ASSERT_EQ(rows.size(), 4u) << outcome.err;
  EXPECT_EQ(rows["MaxRoiPool"]["nodes"], nlohmann::json({"hard"}));
  EXPECT_EQ(rows["Sofmax"]["why"], "unknown operator");
  EXPECT_EQ(rows["NonZero"]["why"], "the values decide how many elements it gives");
  EXPECT_EQ(rows["TopK"]["why"],
            "its operand \"K\" is computed from data, and decides the size of what it gives");
  EXPECT_EQ(rows["TopK"]["instead"], "a constant, or what follows from shapes (Shape, Size)");
  EXPECT_EQ(rows["TopK"]["nodes"], nlohmann::json({"best"}));
}

TEST(Import, AllOpsWithoutAKernelAreTold) {
  const Workplace place;
  place.write("m.onnxtxt",
              std::string(kHead) + R"(g (float[2,2] x, bool[4] c) => (float[2,2] y, float[] z) {
    [pick] d = Compress (x, c)
    [first] s = Unique (x)
    [second] t = Unique (d)
    [add] y = Add (x, x)
    [sum] z = Add (t, t)
  })");
  const Outcome outcome = place.run(words("compile m.onnxtxt --inference -o a.onnx"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("warning: m.onnxtxt: the CPU has no kernel for 2 ops"));
  EXPECT_THAT(outcome.err, HasSubstr("Compress (op-set 23; 1 node; no kernel): pick"));
  EXPECT_THAT(outcome.err, HasSubstr("Unique (op-set 23; 1 node; no kernel): second"));
}

}  // namespace
}  // namespace halfnote::cli_test
