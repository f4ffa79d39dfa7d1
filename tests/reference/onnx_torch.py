"""Runs an ONNX file with torch's operators, so that autograd gives its gradients.

Each node becomes the torch call that computes the same; nothing is rewritten or fused. All floating-point
numbers are computed in one type, float32 or float64, whatever the file says. An operator or attribute that
is not known here is an error.
"""

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper

OPERATORS = {}

ELEMENTWISE = {
    "Add": torch.add,
    "And": torch.logical_and,
    "Cos": torch.cos,
    "Equal": torch.eq,
    "Erf": torch.erf,
    "GreaterOrEqual": torch.ge,
    "IsNaN": torch.isnan,
    "LessOrEqual": torch.le,
    "MatMul": torch.matmul,
    "Mul": torch.mul,
    "Neg": torch.neg,
    "Pow": torch.pow,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Sin": torch.sin,
    "Sqrt": torch.sqrt,
    "Sub": torch.sub,
    "Tanh": torch.tanh,
    "Where": torch.where,
}


class Node:
    """An ONNX node with its attributes as Python values, each of which must be asked for."""

    def __init__(self, proto):
        self.kind = proto.op_type
        self.name = proto.name
        self.inputs = list(proto.input)
        self.outputs = list(proto.output)
        self.attributes = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
        self.asked = set()

    def get(self, name, default=None):
        self.asked.add(name)
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def require(self, name, *allowed):
        """The attribute, if present, has one of the values that the operator's function computes."""
        value = self.get(name, allowed[0])
        if value not in allowed:
            raise NotImplementedError(f"{self.kind} {self.name}: {name} = {value}")

    def check_all_asked(self):
        ignored = set(self.attributes) - self.asked
        if ignored:
            raise NotImplementedError(f"{self.kind} {self.name}: attributes {sorted(ignored)}")


def operator(function):
    OPERATORS[function.__name__] = function
    return function


def ints(tensor):
    return [int(x) for x in tensor.reshape(-1)]


@operator
def Cast(node, dtype, x):
    to = node.get("to")
    if to in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        return x.to(dtype)
    return x.to({onnx.TensorProto.INT64: torch.int64, onnx.TensorProto.BOOL: torch.bool}[to])


@operator
def Concat(node, dtype, *parts):
    return torch.cat(parts, node.get("axis"))


@operator
def Constant(node, dtype):
    return to_torch(node.get("value"), dtype)


@operator
def ConstantOfShape(node, dtype, shape):
    value = to_torch(node.get("value"), dtype)
    return value.reshape([1] * shape.numel()).expand(ints(shape))


@operator
def Conv(node, dtype, x, weight, bias=None):
    node.require("auto_pad", "NOTSET")
    node.get("kernel_shape")
    return F.conv2d(
        x,
        weight,
        bias,
        stride=node.get("strides", [1, 1]),
        padding=symmetric_padding(node),
        dilation=node.get("dilations", [1, 1]),
        groups=node.get("group", 1),
    )


def symmetric_padding(node):
    pads = node.get("pads", [0, 0, 0, 0])
    if pads[:2] != pads[2:]:
        raise NotImplementedError(f"{node.kind} {node.name}: pads = {pads}")
    return pads[:2]


@operator
def Div(node, dtype, a, b):
    if a.is_floating_point():
        return torch.div(a, b)
    return torch.div(a, b, rounding_mode="trunc")


@operator
def Expand(node, dtype, x, shape):
    return x.expand(torch.broadcast_shapes(x.shape, ints(shape)))


@operator
def Flatten(node, dtype, x):
    axis = node.get("axis", 1)
    return x.reshape(x.shape[:axis].numel(), x.shape[axis:].numel())


@operator
def Gather(node, dtype, x, indices):
    axis = node.get("axis", 0) % x.dim()
    indices = torch.where(indices < 0, indices + x.shape[axis], indices)
    if axis == 0 and x.dim() == 2:
        return F.embedding(indices, x)
    rows = x.index_select(axis, indices.reshape(-1))
    return rows.reshape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


@operator
def GatherND(node, dtype, x, indices):
    node.require("batch_dims", 0)
    return x[tuple(indices.unbind(-1))]


@operator
def Gelu(node, dtype, x):
    return F.gelu(x, approximate=node.get("approximate", "none"))


@operator
def Gemm(node, dtype, a, b, c=None):
    a = a.T if node.get("transA", 0) else a
    b = b.T if node.get("transB", 0) else b
    product = node.get("alpha", 1.0) * (a @ b)
    beta = node.get("beta", 1.0)
    return product if c is None else product + beta * c


@operator
def LayerNormalization(node, dtype, x, scale, bias=None):
    node.require("axis", -1, x.dim() - 1)
    node.require("stash_type", 1)
    return F.layer_norm(x, x.shape[-1:], scale, bias, node.get("epsilon", 1e-5))


@operator
def Max(node, dtype, *operands):
    result = operands[0]
    for operand in operands[1:]:
        result = torch.maximum(result, operand)
    return result


@operator
def MaxPool(node, dtype, x):
    node.require("auto_pad", "NOTSET")
    node.require("storage_order", 0)
    node.require("ceil_mode", 0)
    return F.max_pool2d(
        x,
        node.get("kernel_shape"),
        stride=node.get("strides", [1, 1]),
        padding=symmetric_padding(node),
        dilation=node.get("dilations", [1, 1]),
    )


@operator
def Range(node, dtype, start, limit, delta):
    return torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


@operator
def ReduceMean(node, dtype, x, axes):
    node.require("noop_with_empty_axes", 0)
    return x.mean(ints(axes), keepdim=bool(node.get("keepdims", 1)))


@operator
def Reshape(node, dtype, x, shape):
    sizes = ints(shape)
    if not node.get("allowzero", 0):
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return x.reshape(sizes)


@operator
def Shape(node, dtype, x):
    return torch.tensor(list(x.shape)[node.get("start", 0) : node.get("end")])


@operator
def Slice(node, dtype, x, starts, ends, axes=None, steps=None):
    count = starts.numel()
    axes = range(count) if axes is None else ints(axes)
    steps = [1] * count if steps is None else ints(steps)
    at = [slice(None)] * x.dim()
    for axis, start, end, step in zip(axes, ints(starts), ints(ends), steps):
        if step < 1:
            raise NotImplementedError(f"{node.kind} {node.name}: step {step}")
        at[axis] = slice(*slice(start, end, step).indices(x.shape[axis]))
    return x[tuple(at)]


@operator
def Softmax(node, dtype, x):
    return F.softmax(x, node.get("axis", -1))


@operator
def Split(node, dtype, x, sizes=None):
    axis = node.get("axis", 0)
    if sizes is not None:
        return x.split(ints(sizes), axis)
    return x.split(-(-x.shape[axis] // node.get("num_outputs")), axis)


@operator
def Squeeze(node, dtype, x, axes=None):
    return x.squeeze() if axes is None else x.squeeze(ints(axes))


@operator
def Transpose(node, dtype, x):
    return x.permute(node.get("perm", list(reversed(range(x.dim())))))


@operator
def Unsqueeze(node, dtype, x, axes):
    rank = x.dim() + axes.numel()
    for axis in sorted(a % rank for a in ints(axes)):
        x = x.unsqueeze(axis)
    return x


def to_torch(proto, dtype):
    tensor = torch.from_numpy(np.array(numpy_helper.to_array(proto)))
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def apply(node, dtype, operands):
    """The node's results, in order."""
    if node.kind in ELEMENTWISE:
        results = ELEMENTWISE[node.kind](*operands)
    elif node.kind in OPERATORS:
        results = OPERATORS[node.kind](node, dtype, *operands)
    else:
        raise NotImplementedError(f"{node.kind} {node.name}")
    node.check_all_asked()
    return results if isinstance(results, tuple) else (results,)


class Model:
    """An ONNX file, its initializers as torch tensors by name."""

    def __init__(self, path, dtype):
        graph = onnx.load(path).graph
        self.dtype = dtype
        self.nodes = [Node(n) for n in graph.node]
        self.initializers = {t.name: to_torch(t, dtype) for t in graph.initializer}
        self.inputs = [i.name for i in graph.input if i.name not in self.initializers]
        self.outputs = [o.name for o in graph.output]

    def run(self, inputs):
        """The outputs by name. Floating-point initializers that require gradients get them from these."""
        values = dict(self.initializers)
        for name in self.inputs:
            value = inputs[name]
            values[name] = value.to(self.dtype) if value.is_floating_point() else value
        for node in self.nodes:
            operands = [values[name] if name else None for name in node.inputs]
            results = apply(node, self.dtype, operands)
            values.update(zip(node.outputs, results, strict=True))
        return {name: values[name] for name in self.outputs}

    def reaches(self, start, output, blocked):
        """Whether `output` is computed from the value `start` by operators of kinds that are not `blocked`."""
        reached = {start}
        for node in self.nodes:
            if node.kind not in blocked and reached.intersection(node.inputs):
                reached.update(node.outputs)
        return output in reached
