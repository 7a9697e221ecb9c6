#include "tests/cli/support.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/sanitizer.h"

namespace halfnote::cli_test {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModel = R"(<ir_version: 10, opset_import: ["" : 23]>
tiny (float[N,6] x) => (float[N,3] logits) <
   float[6,8] w1 = {%W1},
   float[8] b1 = {0, 0.1, 0, -0.1, 0, 0.2, 0, 0},
   float[8] scale = {1, 1, 1, 1, 1, 1, 1, 1},
   float[8] shift = {0, 0, 0, 0, 0, 0, 0, 0},
   float[8] mean = {0, 0, 0, 0, 0, 0, 0, 0},
   float[8] var = {1, 1, 1, 1, 1, 1, 1, 1},
   float[8,3] w2 = {%W2}
> {
   h = Gemm (x, w1, b1)
   n, mean_next, var_next = BatchNormalization <training_mode: int = 1> (h, scale, shift, mean, var)
   r = Relu (n)
   logits = MatMul (r, w2)
}
)";

/// Numbers in [-1, 1) that are the same on every machine.
std::string numbers(int count, uint32_t seed) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    text += (i == 0 ? "" : ", ") + std::to_string(static_cast<double>(seed >> 8) / (1 << 23) - 1);
  }
  return text;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

[[noreturn]] void become_program(const fs::path& folder, const fs::path& out, const fs::path& err,
                                 const std::vector<std::string>& arguments, const Launch& launch) {
  std::vector<char*> argv;
  std::string program = program_under_test();
  argv.push_back(program.data());
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const std::string file = launch.output.empty() ? out.string() : launch.output;
  const int to = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  const int errors = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  const bool ready = ::dup2(to, STDOUT_FILENO) >= 0 && ::dup2(errors, STDERR_FILENO) >= 0 &&
                     ::chdir(folder.c_str()) == 0;
  if (launch.file_size_limit) {
    const rlimit limit = {*launch.file_size_limit, *launch.file_size_limit};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  if (launch.memory_limit) {
    const rlimit limit = {*launch.memory_limit, *launch.memory_limit};
    // The sanitizer's own tables take more than any limit; it refuses what is over a terabyte.
    if (under_address_sanitizer())
      ::setenv("ASAN_OPTIONS", "allocator_may_return_null=1", 1);
    else
      ::setrlimit(RLIMIT_AS, &limit);
  }
  if (ready) ::execv(program.c_str(), argv.data());
  ::_exit(127);
}

}  // namespace

std::string program_under_test() {
  return fs::read_symlink("/proc/self/exe").replace_filename("halfnote").string();
}

std::string npy(std::string_view type, std::string_view shape, std::string_view bytes) {
  std::string header = "{'descr': '" + std::string(type) +
                       "', 'fortran_order': False, 'shape': " + std::string(shape) + ", }";
  header.resize((header.size() + 10 + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  header += '\n';
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size() & 0xff);
  file += static_cast<char>(header.size() >> 8);
  return file + header + std::string(bytes);
}

std::vector<std::string> words(std::string_view line) {
  std::istringstream in{std::string(line)};
  std::vector<std::string> result;
  for (std::string word; in >> word;) result.push_back(word);
  return result;
}

Workplace::Workplace() {
  std::string path = (fs::temp_directory_path() / "halfnote_cli.XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = path;
  std::string model(kModel);
  model.replace(model.find("%W1"), 3, numbers(48, 1));
  model.replace(model.find("%W2"), 3, numbers(24, 2));
  write("tiny.onnxtxt", model);
  std::vector<int64_t> labels;
  std::vector<float> x;
  uint32_t seed = 3;
  for (int i = 0; i < 22; ++i) {
    labels.push_back(i * 7 % 3);
    for (int j = 0; j < 6; ++j) {
      seed = seed * 1664525u + 1013904223u;
      const float noise = static_cast<float>(seed >> 8) / (1 << 24) - 0.5f;
      x.push_back(noise + (j % 3 == labels.back() ? 1.0f : 0.0f));
    }
  }
  write("x.npy", npy("<f4", "(22, 6)", bytes_of(x)));
  write("labels.npy", npy("<i8", "(22,)", bytes_of(labels)));
  labels[5] = 3;
  write("wrong.npy", npy("<i8", "(22,)", bytes_of(labels)));
}

Workplace::~Workplace() {
  std::error_code error;
  fs::remove_all(path_, error);
}

void Workplace::write(std::string_view name, std::string_view bytes) const {
  std::ofstream(path_ / name, std::ios::binary) << bytes;
}

std::string Workplace::read(std::string_view name) const { return slurp(path_ / name); }

std::vector<std::string> Workplace::list(std::string_view folder) const {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path_ / folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Outcome Workplace::run(const std::vector<std::string>& arguments, const Launch& launch) const {
  const fs::path out = path_.string() + ".out", err = path_.string() + ".err";
  const pid_t child = ::fork();
  if (child == 0) become_program(path_, out, err, arguments, launch);
  launch.meanwhile(child);
  int status = 0;
  rusage used{};
  ::wait4(child, &status, 0, &used);
  Outcome outcome;
  outcome.peak = static_cast<uint64_t>(used.ru_maxrss) * 1024;
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  outcome.out = slurp(out);
  outcome.err = slurp(err);
  fs::remove(out);
  fs::remove(err);
  return outcome;
}

void Workplace::compile(const std::string& name, const std::vector<std::string>& more) const {
  std::vector<std::string> arguments =
      words("compile tiny.onnxtxt --loss cross_entropy -q -o " + name);
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = run(arguments);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  ASSERT_TRUE(exists(name));
}

}  // namespace halfnote::cli_test
