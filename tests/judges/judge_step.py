#!/usr/bin/env python3
"""Executes emitted training steps in onnxruntime and compares with our runtime and with PyTorch.

    tests/judges/judge_step.py FOLDER/WITH/PROGRAMS [--frozen] [CASE…]

For each case of tests/fixtures/models (default: all), each of SGD, momentum and AdamW, and each of
fp32, bf16 and fp16, the step is compiled twice: as the artifact, which our runtime executes
(halfnote-step), and as one ordinary ONNX model, which onnxruntime executes. Both take three steps
on the same batch, each feeding its own new states back. Compared are the losses and, after each
step, every state.

A gradient node leaves out the results that nobody trains. So that such holes are judged, too, the
recurrent and the normalization cases (FROZEN, some of them of tests/fixtures/exporters) are
compiled again with some operands frozen, by SGD in FP32: each update is a gradient then, and agrees
to 1e-4 of its own norm, n of the largest and the roundings of the weight (2^-23 of it a step).
PyTorch trained all of them, so only the loss of the first step is its own. --frozen judges these
alone.

The cases of ACCUMULATED are compiled once more with --accumulate 2, by momentum in FP32:
onnxruntime runs the emitted micro-batch, and after every second one the emitted update, on one set
of states by name. On equal micro-batches each update is a step of PyTorch's.

FP32: losses and states agree to 1e-4 of their norm, and the losses with PyTorch's to 1e-4.

AdamW divides a gradient by its size, noise too: an element smaller than its error may change its
sign. A weight may therefore besides be off by what the moments of the two sides, which are compared
themselves, say of its updates. In the step after that, the running means that a bias feeds move
with it, and in 16 bit each of the D values on a path by as much of its norm as all weights of
theirs.

A gradient that is zero but for rounding (of a bias before a normalization, of a key's bias) is the
sum of terms that cancel, and has their rounding errors: n = 2^-24·64 (f32 sums), or u (16 bit), of
the largest norm among the gradients is allowed on any gradient, and what becomes of it in a moment.

A ReLU whose input is 0 up to rounding passes a gradient on one side and not on the other: one of n
elements moves the gradients by 1/sqrt(n), 4 % in the last layers of resnet50_narrow, which has half
a million of them: in its second or third step one falls between our sums (in f64) and onnxruntime's
(in f32). Its first step alone is judged in FP32 (FIRST_STEP_ONLY).

16 bit: both execute the same graph with the same roundings, so they differ only where a sum taken
in another order falls on the other side of a rounding boundary. A flipped rounding moves an element
by one spacing, 2u of it (u = 2^-8 for bf16, 2^-11 for fp16). On a path with D roundings the error
is, relative to the norm, at most

    e = 2 u D

D is counted in the emitted model: the most casts to the 16-bit type on any path to the value. So

    loss                   |z_y - log sum exp z| moves by at most 2 max|dz|, so 2 e max|z|, where z
                           are the logits
    momentum, 1st moment   linear in the gradients: e of its norm
    2nd moment             quadratic: 2 e of its norm
    weight                 the update is linear: e times the norm of the update

and k times that after step k, as each step starts from the states of the one before. The f32 rest
is allowed as in FP32. Loss scale and counters must be equal.
"""
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STEPS = 3
F32_BAR = 1e-4
F32_NOISE = 64 * 2.0**-24
FIRST_STEP_ONLY = {"resnet50_narrow"}
FROZEN = {  # what is not trained: patterns for whole names
    "lstm_lm": [r"r2?\.weight_hh_l0", r"r2?\.weight_ih_l0", r"r2?\.bias_.*", r"r2?\.[bw].*_ih_l0",
                r"r2?\..*"],
    "gru_classifier": [r"r\.weight_hh.*", r"r\.weight_ih.*", r"r\.bias_.*", r"r\..*"],
    "lstm_legacy14": [r"rnn\.weight_hh.*", r"rnn\.weight_ih.*", r"rnn\.bias_.*"],
    "rnn_legacy16": [r"rnn\.weight_hh.*", r"rnn\.weight_ih.*", r"rnn\.bias_.*"],
    "norms_dynamo23": [r"net\.(n\..|ln|rms)\.weight", r"net\.n\..\.bias",
                       r"net\.(n\..|ln|rms)\..*", r"net\.[cm].*"],
    "norms_legacy13": [r"net\.(n\..|ln|rms)\.weight", r"net\.n\..\.bias"],
    "bn_train_legacy15": [r"net\.\d\.1\.weight", r"net\.\d\.1\.bias", r"net\.\d\.1\..*"],
    "unet": [r".*\.[14]\.weight", r".*\.[14]\.bias"],
    "vit": [r".*ln.*\.weight", r".*ln.*\.bias"],
}
ACCUMULATED = ("mlp", "cifar_cnn", "bn_train_legacy15")
MICRO_BATCHES = 2  # an update
UNIT = {"bf16": 2.0**-8, "fp16": 2.0**-11}
LOW_TYPE = {"bf16": onnx.TensorProto.BFLOAT16, "fp16": onnx.TensorProto.FLOAT16}
NUMPY = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "i32": np.int32, "bool": np.bool_}

Run = collections.namedtuple("Run", "losses states logits")  # one entry a step


def compile_case(programs, case, kind, precision, folder):
    """The path of the artifact, and those of the emitted step and of what is beside it."""
    settings = case["optimizers"][kind]
    flags = ["--loss-output", case["loss_output"], "--precision", precision, "--quiet"]
    flags += ["--optimizer", kind, "--lr", repr(settings["lr"])]
    if "momentum" in settings:
        flags += ["--momentum", repr(settings["momentum"])]
    if "weight_decay" in settings:
        flags += ["--weight-decay", repr(settings["weight_decay"])]
    for name in case["trainable"]:
        flags += ["--trainable", re.escape(name)]
    if "micro_batches" in case:
        flags += ["--accumulate", str(case["micro_batches"])]
    artifact, step = folder / "artifact.hn.onnx", folder / "step.onnx"
    command = [programs / "halfnote", "compile", case["file"], *flags]
    subprocess.run([*command, "-o", artifact], check=True)
    emulate = [] if precision == "fp32" else ["--emulate-16bit"]
    subprocess.run([*command, "--emit", "step", *emulate, "-o", step], check=True)
    return artifact, [step] + ([folder / "step.apply.onnx"] if "micro_batches" in case else [])


def first_states(artifact):
    """Initial values by name: initializers of the graph and of the training steps."""
    model = onnx.load(artifact)
    found = {}
    for graph in (model.graph, *(info.algorithm for info in model.training_info)):
        for tensor in graph.initializer:
            found[tensor.name] = onnx.numpy_helper.to_array(tensor)
        for tensor in graph.sparse_initializer:  # states that begin with zeros
            kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.values.data_type)
            assert tensor.values.dims[0] == 0, f"{tensor.values.name} is not all zeros"
            found[tensor.values.name] = np.zeros(tensor.dims, kind)
    return found


def open_session(step):
    """In onnxruntime without its optimizer: it must not remove our roundings."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return ort.InferenceSession(str(step), options, providers=["CPUExecutionProvider"])


def run_session(session, inputs, states):
    """The outputs by name; the states move on."""
    feed = {}
    for i in session.get_inputs():
        if i.name in states:
            feed[i.name] = states[i.name]
        else:
            wanted = np.int64 if "int64" in i.type else np.float32
            feed[i.name] = inputs[i.name].astype(wanted)
    results = dict(zip([o.name for o in session.get_outputs()], session.run(None, feed)))
    for name in results:
        if name.endswith(".new"):
            states[name[: -len(".new")]] = results[name]
    return results


def run_onnxruntime(case, steps, artifact):
    """All steps of the case; the update, where it is apart, after each window of micro-batches."""
    step, *update = [open_session(path) for path in steps]
    first = first_states(artifact)
    states = {}
    for session in (step, *update):
        for o in session.get_outputs():
            name = o.name.removesuffix(".new")
            if name != o.name:
                states[name] = first[name]
    outputs = [o.name for o in step.get_outputs()]
    run = Run([], [], [])
    for k in range(steps_of(case)):
        results = run_session(step, case["inputs_arrays"], states)
        if update and (k + 1) % case["micro_batches"] == 0:
            run_session(update[0], {}, states)
        run.losses.append(float(results[outputs[0]]))
        run.logits.append(float(np.abs(results[outputs[1]].astype(np.float64)).max()))
        run.states.append(dict(sorted(states.items())))
    return run, first


def run_ours(programs, artifact, inputs_file, folder, steps):
    """So many steps in our runtime."""
    command = [programs / "halfnote-step", artifact, inputs_file, str(steps), folder]
    subprocess.run(command, check=True)
    described = json.loads((folder / "steps.json").read_text())
    run = Run([s["loss"] for s in described["steps"]], [], [])
    for k in range(steps):
        data = (folder / f"step-{k + 1}.bin").read_bytes()
        states = {}
        for state in described["states"]:
            dtype, count = NUMPY[state["dtype"]], int(np.prod(state["shape"]))
            array = np.frombuffer(data, dtype, count, state["offset"])
            states[state["name"]] = array.reshape(state["shape"])
        run.states.append(states)
    return run


def count_roundings(step, precision):
    """The most casts to the 16-bit type on any path, by value name."""
    depth = collections.defaultdict(int)
    for node in onnx.load(step).graph.node:
        here = max((depth[name] for name in node.input), default=0)
        if node.op_type == "Cast" and node.attribute[0].i == LOW_TYPE[precision]:
            here += 1
        for name in node.output:
            depth[name] = here
    return depth


def norm(array):
    return float(np.linalg.norm(array.astype(np.float64)))


class Allowed:
    """How far a state may be off, as a norm; 0 for what must be equal."""

    def __init__(self, case, kind, precision):
        self.trainable, self.kind, self.precision = case["trainable"], kind, precision
        self.only_updates = "frozen" in case
        self.settings = case["optimizers"][kind]
        self.moved = collections.defaultdict(float)  # by AdamW, on one side and not on the other

    def begin(self, k, ours, judge, first):
        """Before the states of step k (from 0) are looked at."""
        self.steps = k + 1
        self.largest = max(norm(judge[t].astype(np.float64) - first[t]) for t in self.trainable)
        suffix = {"sgd": None, "momentum": ".velocity", "adamw": ".m"}[self.kind]
        norms = [norm(judge[t + suffix]) for t in self.trainable] if suffix else [0.0]
        self.noise = UNIT.get(self.precision, F32_NOISE) * max(norms)  # of a first moment
        sums = [norm(judge[n]) for n in judge if n.startswith("sum/")]
        self.noise_of_sums = F32_NOISE * max(sums, default=0.0)
        self.moved_before = sum(self.moved.values())
        whole = sum(norm(judge[name]) ** 2 for name in self.trainable) ** 0.5
        self.share_before = sum(x * x for x in self.moved.values()) ** 0.5 / whole
        if self.kind != "adamw":
            return
        for name in self.trainable:
            difference = self.update(name, k + 1, ours) - self.update(name, k + 1, judge)
            self.moved[name] += norm(difference)

    def update(self, name, step, states):
        s = self.settings
        m = states[name + ".m"].astype(np.float64) / (1 - s["beta1"] ** step)
        v = states[name + ".v"].astype(np.float64) / (1 - s["beta2"] ** step)
        return s["lr"] * m / (np.sqrt(v) + s["eps"])

    def __call__(self, name, error, update, want):
        if want.dtype != np.float32 or name.startswith("loss_scale"):
            return 0.0
        rest = F32_BAR * norm(want)
        if name in self.trainable and self.only_updates:
            rounding = self.steps * 2.0**-23 * norm(want)
            return F32_BAR * update + F32_NOISE * self.largest + rounding
        if name in self.trainable:
            return rest + error * update + self.moved[name]
        if name.startswith("sum/"):
            return rest + self.noise_of_sums
        if name.endswith(".velocity") or name.endswith(".m"):
            return rest + error * norm(want) + self.noise
        if name.endswith(".v"):  # (g + n)² − g² of gradients, whose share in m is 1 − beta1
            s = self.settings
            noise = self.noise / (1 - s["beta1"])
            size = (norm(want) / (1 - s["beta2"])) ** 0.5
            return rest + 2 * error * norm(want) + (1 - s["beta2"]) * noise * (2 * size + noise)
        return rest + error * norm(want) + self.moved_before


def steps_of(case):
    """Runs of the step: two updates where micro-batches are summed."""
    return 2 * case["micro_batches"] if "micro_batches" in case else STEPS


def judged_steps(case, precision):
    return 1 if precision == "fp32" and case["model"] in FIRST_STEP_ONLY else steps_of(case)


def compare(case, kind, precision, judge, ours, first, depth):
    """Yields a line for every difference beyond its bound; last comes the worst (ratio, name)."""
    worst = (0.0, "nothing")
    allowed = Allowed(case, kind, precision)
    for k in range(judged_steps(case, precision)):
        allowed.begin(k, ours.states[k], judge.states[k], first)
        losses = ours.losses[k], judge.losses[k]
        error = 0.0 if depth is None else 2 * UNIT[precision] * depth[case["loss_output"]] * (k + 1)
        bar = F32_BAR * abs(losses[1]) + 2 * error * judge.logits[k]
        ratio = abs(losses[0] - losses[1]) / bar
        worst = max(worst, (ratio, "loss"))
        if not ratio <= 1:
            yield f"step {k + 1}: loss {losses[0]!r}, onnxruntime {losses[1]!r}, allowed {bar:.2e}"
        if precision == "fp32" and (k == 0 or "frozen" not in case):
            want = case["losses"][kind][k // case.get("micro_batches", 1)]
            if not abs(losses[1] - want) <= F32_BAR * abs(want):
                yield f"step {k + 1}: loss {losses[1]!r} in onnxruntime, PyTorch {want!r}"
        for name, want in judge.states[k].items():
            got = ours.states[k][name]
            if got.shape != want.shape or got.dtype != want.dtype:
                yield f"step {k + 1}: {name}: {got.dtype}{got.shape}, not {want.dtype}{want.shape}"
                continue
            deep = 0.0 if depth is None else depth[name + ".new"]
            error = 0.0
            if depth is not None:
                error = deep * (2 * UNIT[precision] * (k + 1) + allowed.share_before)
            update = norm(want.astype(np.float64) - first[name])
            bar = allowed(name, error, update, want)
            off = norm(got.astype(np.float64) - want)
            if off == 0:
                continue
            worst = max(worst, (off / bar if bar > 0 else float("inf"), name))
            if not off <= bar:
                yield f"step {k + 1}: {name}: off by {off:.3e}, allowed {bar:.3e}"
    yield worst


def judge_one(programs, case, kind, precision):
    """A line about one compilation, and its differences; none if all is well."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        artifact, steps = compile_case(programs, case, kind, precision, folder)
        for step in steps:
            onnx.checker.check_model(str(step), full_check=True)
        np.savez(folder / "inputs.npz", **case["inputs_arrays"])
        judge, first = run_onnxruntime(case, steps, artifact)
        ours = run_ours(programs, artifact, folder / "inputs.npz", folder / "ours", steps_of(case))
        depth = None if precision == "fp32" else count_roundings(steps[0], precision)
        *differences, worst = compare(case, kind, precision, judge, ours, first, depth)
        applied = int(ours.states[-1]["applied_step"])
        missing = set(case["trainable"]) - set(judge.states[0])
        if missing:
            differences.append(f"not among the states: {', '.join(sorted(missing))}")
        if applied < 1:
            differences.append("no step was applied: nothing was compared")
    verdict = "pass" if not differences else "FAIL"
    form = f"  without {case['frozen']}" if "frozen" in case else ""
    form += f"  in {case['micro_batches']} micro-batches" if "micro_batches" in case else ""
    updates = steps_of(case) // case.get("micro_batches", 1)
    line = (f"{case['model']:<15} {kind:<9} {precision}  applied {applied} of {updates}  "
            f"worst {worst[0]:.1e} of its bound ({worst[1]})  {verdict}{form}")
    return line, differences


def read_case(name):
    folders = (ROOT / "tests" / "fixtures" / kind / name for kind in ("models", "exporters"))
    folder = next(f for f in folders if f.is_dir())
    case = json.loads((folder / "case.json").read_text())
    case["file"] = folder / "model.onnx"
    arrays = dict(np.load(folder / "inputs.npz"))
    case["inputs_arrays"] = arrays
    return case


def frozen_cases(names):
    """The cases of FROZEN, without what is frozen."""
    for name in names:
        case = read_case(name)
        for pattern in FROZEN[name]:
            trained = [t for t in case["trainable"] if not re.fullmatch(pattern, t)]
            assert 0 < len(trained) < len(case["trainable"]), f"{name}: {pattern}"
            yield {**case, "trainable": trained, "frozen": pattern}


def main():
    arguments = [a for a in sys.argv[1:] if a != "--frozen"]
    if not arguments:
        print(__doc__)
        return 2
    programs = pathlib.Path(arguments[0])
    names = arguments[1:] or sorted(
        folder.name for folder in (ROOT / "tests" / "fixtures" / "models").iterdir())
    frozen = [name for name in arguments[1:] or FROZEN if name in FROZEN]
    accumulated = [name for name in arguments[1:] or ACCUMULATED if name in ACCUMULATED]
    if "--frozen" in sys.argv:
        names = accumulated = []
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = []
        for name in names:
            case = read_case(name)
            for kind in case["optimizers"]:
                for precision in ("fp32", "bf16", "fp16"):
                    jobs.append(pool.submit(judge_one, programs, case, kind, precision))
        for case in frozen_cases(frozen):
            jobs.append(pool.submit(judge_one, programs, case, "sgd", "fp32"))
        for name in accumulated:
            case = {**read_case(name), "micro_batches": MICRO_BATCHES}
            jobs.append(pool.submit(judge_one, programs, case, "momentum", "fp32"))
        for job in jobs:
            line, differences = job.result()
            failed += bool(differences)
            print("\n    ".join([line, *differences]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
