"""Makes the reference data of tests/data/training with PyTorch: gradients and loss curves.

    pip install -r tests/reference/requirements.txt
    python tests/reference/training.py [--models FOLDER] [--out FOLDER]

FOLDER of the models has a folder with `model.onnx`, `meta.json` and `test_data_set_0` for each. What is
written, in which form, is in tests/data/training/README.md. The same versions give the same bytes.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from safetensors.numpy import save_file

from onnx_torch import Model

TESTS = Path(__file__).resolve().parent.parent

SAMPLES = 64
PEAKS = 8
STEPS = 20
BATCHES = 4
IGNORED = -100

# A curve is computed again this often, each time with every parameter disturbed by this part of itself,
# several times what rounding in float32 does. A curve that this moves further than allowed is no reference:
# decisions of ReLU and MaxPool that lie within rounding make training chaotic.
DISTURBANCES = 16
DISTURBANCE = 5e-7
MAX_SENSITIVITY = 1e-5

# A gradient that is this small a part of all gradients' norm in float64 is zero but for rounding.
VANISHING = 1e-12

# Model, output that the loss looks at, loss.
GRADIENTS = [
    ("gpt2-dynamo", "logits", "cross-entropy"),
    ("llama-dynamo", "logits", "cross-entropy"),
    ("bert-dynamo", "last_hidden_state", "mse"),
    ("bert-legacy", "last_hidden_state", "mse"),
    ("vit-hf-dynamo", "logits", "cross-entropy"),
    ("resnet18-dynamo", "y", "cross-entropy"),
    ("dlrm-dynamo", "ctr", "mse"),
]

ADAMW = {
    "optimizer": "adamw",
    "learning_rate": 1e-3,
    "beta1": 0.9,
    "beta2": 0.95,
    "epsilon": 1e-8,
    "weight_decay": 0.1,
}
SGD = {"optimizer": "sgd", "learning_rate": 1e-3, "momentum": 0.9}

# Model, seed of its batches, recipes by name. The convolutional network's learning rates and seed are ones
# under which it trains without chaos.
CURVES = [
    (
        "gpt2-dynamo",
        0,
        {
            "adamw": ADAMW,
            "adamw-clipped": {**ADAMW, "clip_norm": 0.5},
            "adamw-accumulated": {**ADAMW, "micro_batches": 2},
            "sgd-momentum": SGD,
        },
    ),
    ("llama-dynamo", 1, {"adamw": ADAMW}),
    ("resnet18-dynamo", 505, {"adamw": {**ADAMW, "learning_rate": 1e-4}, "sgd-momentum": SGD}),
]


def loss_of(kind, output, labels):
    if kind == "cross-entropy":
        classes = output.shape[-1]
        return F.cross_entropy(output.reshape(-1, classes), labels.reshape(-1), ignore_index=IGNORED)
    return F.mse_loss(output, labels.to(output.dtype))


def next_tokens(tokens, mask):
    """What follows each token, where something does."""
    labels = np.full_like(tokens, IGNORED)
    labels[..., :-1] = np.where(mask[..., 1:] == 1, tokens[..., 1:], IGNORED)
    return labels


def labels_of(kind, inputs, output, generator):
    """Labels for one data set of a model whose output is `output`."""
    if kind == "mse":
        drawn = generator.normal if output.min() < 0 else generator.uniform
        return drawn(size=output.shape).astype(np.float32)
    if "input_ids" in inputs:
        return next_tokens(inputs["input_ids"], inputs["attention_mask"])
    return generator.integers(output.shape[-1], size=output.shape[:-1])


def token_batches(generator, rows=8, length=16, vocabulary=256):
    """Sequences of random tokens; two rows of each batch are shorter, padded at their end."""
    shape = (BATCHES, rows, length)
    mask = np.ones(shape, np.int64)
    for batch in mask:
        for row in generator.choice(rows, 2, replace=False):
            batch[row, generator.integers(2, length) :] = 0
    tokens = generator.integers(1, vocabulary, size=shape) * mask
    return {"input_ids": tokens, "attention_mask": mask, "labels": next_tokens(tokens, mask)}


def image_batches(generator, rows=4, classes=10):
    images = generator.normal(size=(BATCHES, rows, 3, 64, 64)).astype(np.float32)
    return {"x": images, "labels": generator.integers(classes, size=(BATCHES, rows))}


def read_tensors(folder, kind):
    tensors = {}
    for path in sorted(folder.glob(f"{kind}_*.pb"), key=lambda p: int(p.stem.split("_")[1])):
        proto = onnx.TensorProto.FromString(path.read_bytes())
        tensors[proto.name] = numpy_helper.to_array(proto)
    return tensors


def to_torch(arrays):
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def check_forward(folder):
    """The interpreter gives every expected output of every data set of the model."""
    meta = json.loads((folder / "meta.json").read_text())
    model = Model(folder / "model.onnx", torch.float32)
    for data_set in sorted(folder.glob("test_data_set_*")):
        with torch.no_grad():
            found = model.run(to_torch(read_tensors(data_set, "input")))
        for name, expected in read_tensors(data_set, "output").items():
            np.testing.assert_allclose(
                found[name].numpy(),
                expected,
                rtol=meta["rtol"],
                atol=meta["atol"],
                err_msg=f"{folder.name} {data_set.name} {name}",
            )


class Trainable:
    """A model whose parameters are leaves of autograd, sorted by what the loss makes of them.

    A parameter is a floating-point initializer with dimensions. It is unused if the output does not
    depend on it, and frozen if it acts only through sine or cosine: then it makes tables of positions.
    """

    def __init__(self, path, output, dtype):
        self.model = Model(path, dtype)
        self.output = output
        self.parameters, self.frozen, self.unused = {}, [], []
        for name, tensor in self.model.initializers.items():
            if not tensor.is_floating_point() or tensor.dim() == 0:
                continue
            if not self.model.reaches(name, output, {"Shape"}):
                self.unused.append(name)
            elif not self.model.reaches(name, output, {"Shape", "Sin", "Cos"}):
                self.frozen.append(name)
            else:
                self.parameters[name] = tensor.requires_grad_()

    def loss(self, kind, data):
        return loss_of(kind, self.model.run(data)[self.output], data["labels"])

    def gradients(self, kind, data):
        loss = self.loss(kind, data)
        found = torch.autograd.grad(loss, list(self.parameters.values()))
        return loss.item(), dict(zip(self.parameters, found))


def positions(length):
    """Up to SAMPLES evenly spaced positions."""
    count = min(SAMPLES, length)
    return [i * length // count for i in range(count)]


def short(x):
    """A number that is written as few digits as single out the float32."""
    return float(str(np.float32(x)))


def summary(gradient):
    """What is kept of a gradient: see the README."""
    flat = gradient.reshape(-1).double().numpy()
    sampled = positions(len(flat))
    peaks = sorted(np.argsort(-np.abs(flat), kind="stable")[:PEAKS].tolist()) if len(flat) > SAMPLES else []
    return {
        "shape": list(gradient.shape),
        "norm": float(np.linalg.norm(flat)),
        "sum": float(flat.sum()),
        "samples": [short(flat[i]) for i in sampled],
        "peaks": [[i, short(flat[i])] for i in peaks],
    }


def norm_of(gradients):
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients])).item()


def check_gradients(trainable, kind, data, gradients, generator):
    """The gradients predict how the loss changes in a random direction."""
    parameters = trainable.parameters
    direction = {n: torch.from_numpy(generator.normal(size=tuple(p.shape))) for n, p in parameters.items()}
    step = 1e-7
    losses = []
    with torch.no_grad():
        for factor in (step, -2 * step, step):
            for name, p in parameters.items():
                p += factor * direction[name]
            losses.append(trainable.loss(kind, data).item())
    found = (losses[0] - losses[1]) / (2 * step)
    expected = sum((gradients[n] * d).sum().item() for n, d in direction.items())
    np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=trainable.output)


def gradient_reference(folder, output, kind, generator):
    inputs = read_tensors(folder / "test_data_set_0", "input")
    expected = read_tensors(folder / "test_data_set_0", "output")[output]
    labels = labels_of(kind, inputs, expected, generator)
    data = to_torch({**inputs, "labels": labels})
    exact = Trainable(folder / "model.onnx", output, torch.float64)
    single = Trainable(folder / "model.onnx", output, torch.float32)
    loss, gradients = exact.gradients(kind, data)
    check_gradients(exact, kind, data, gradients, np.random.default_rng(0))
    _, rounded = single.gradients(kind, data)
    total = norm_of(gradients.values())
    vanishing = [n for n, g in gradients.items() if norm_of([g]) < VANISHING * total]
    errors = [
        norm_of([rounded[n].double() - g]) / norm_of([g]) for n, g in gradients.items() if n not in vanishing
    ]
    return {
        "model": folder.name,
        "output": output,
        "loss": kind,
        "labels": {
            "dtype": "f32" if kind == "mse" else "i64",
            "shape": list(labels.shape),
            "values": [short(x) if kind == "mse" else int(x) for x in labels.reshape(-1)],
        },
        "value": loss,
        "norm": total,
        "float32_error": max(errors),
        "frozen": exact.frozen,
        "unused": exact.unused,
        "vanishing": vanishing,
        "gradients": {name: summary(gradient) for name, gradient in gradients.items()},
    }


def optimizer_of(recipe, parameters):
    if recipe["optimizer"] == "sgd":
        return torch.optim.SGD(parameters, lr=recipe["learning_rate"], momentum=recipe["momentum"])
    return torch.optim.AdamW(
        parameters,
        lr=recipe["learning_rate"],
        betas=(recipe["beta1"], recipe["beta2"]),
        eps=recipe["epsilon"],
        weight_decay=recipe["weight_decay"],
        foreach=False,
    )


def disturb(parameters, seed):
    """Changes each element by a random one of -DISTURBANCE, 0 and DISTURBANCE of itself."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in parameters:
            p *= 1 + DISTURBANCE * (torch.randint(3, p.shape, generator=generator) - 1)


def curve(path, output, recipe, batches, dtype, seed=None):
    """The loss of each step before its update, and the norm of its gradient before it is clipped.

    With a seed the parameters are disturbed first.
    """
    model = Trainable(path, output, dtype)
    parameters = list(model.parameters.values())
    if seed is not None:
        disturb(parameters, seed)
    optimizer = optimizer_of(recipe, parameters)
    micro_batches = recipe.get("micro_batches", 1)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for i in range(step * micro_batches, (step + 1) * micro_batches):
            batch = {name: tensor[i % BATCHES] for name, tensor in batches.items()}
            loss = model.loss("cross-entropy", batch) / micro_batches
            loss.backward()
            total += loss.item()
        losses.append(total)
        norms.append(norm_of([p.grad for p in parameters]))
        if "clip_norm" in recipe:
            torch.nn.utils.clip_grad_norm_(parameters, recipe["clip_norm"])
        optimizer.step()
    return losses, norms


def curve_reference(folder, output, recipe, batches):
    path = folder / "model.onnx"
    losses, norms = curve(path, output, recipe, batches, torch.float32)
    exact, _ = curve(path, output, recipe, batches, torch.float64)
    disturbed = [curve(path, output, recipe, batches, torch.float32, seed)[0] for seed in range(DISTURBANCES)]
    sensitivity = float(np.abs(np.array([losses, *disturbed]) - exact).max())
    if sensitivity > MAX_SENSITIVITY:
        raise SystemExit(f"{folder.name} {recipe}: rounding moves the losses by {sensitivity:.1e}")
    return {
        "recipe": recipe,
        "sensitivity": sensitivity,
        "losses": [short(x) for x in losses],
        "losses_float64": exact,
        "gradient_norms": [short(x) for x in norms],
    }


def write_json(path, value):
    """JSON with a line for each tensor."""
    text = json.dumps(value, separators=(", ", ": "))
    for opening in ('"gradients": {', '"recipe": {', '"losses": [', '"losses_float64": [', '"gradient_norms": ['):
        text = text.replace(opening, "\n" + opening)
    text = text.replace('}, "', '},\n"').replace('"gradients": {"', '"gradients": {\n"')
    path.write_text(text + "\n")


def main():
    parser = argparse.ArgumentParser(description="Makes tests/data/training.")
    parser.add_argument("--models", type=Path, default=TESTS.parent.parent / "shared/models/run")
    parser.add_argument("--out", type=Path, default=TESTS / "data/training")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    arguments.out.mkdir(parents=True, exist_ok=True)

    references = {}
    for seed, (name, output, kind) in enumerate(GRADIENTS):
        folder = arguments.models / name
        check_forward(folder)
        reference = gradient_reference(folder, output, kind, np.random.default_rng([4, seed]))
        write_json(arguments.out / f"{name}.gradients.json", reference)
        references[name] = reference
        print(f"{name}: loss {reference['value']:.6f}, float32 within {reference['float32_error']:.1e}")

    for name, seed, recipes in CURVES:
        generator = np.random.default_rng([20, seed])
        arrays = image_batches(generator) if "resnet" in name else token_batches(generator)
        save_file(arrays, arguments.out / f"{name}.batches.safetensors")
        batches = to_torch(arrays)
        about = {field: references[name][field] for field in ("model", "output", "loss", "frozen")}
        curves = {
            recipe: curve_reference(arguments.models / name, about["output"], settings, batches)
            for recipe, settings in recipes.items()
        }
        write_json(arguments.out / f"{name}.curves.json", {**about, "curves": curves})
        for recipe, c in curves.items():
            first, last, within = c["losses"][0], c["losses"][-1], c["sensitivity"]
            print(f"{name} {recipe}: loss {first:.4f} to {last:.4f}, float32 within {within:.1e}")


if __name__ == "__main__":
    sys.exit(main())
