"""Writes the cases in this folder: `python generate.py`, with `onnx` and `onnxruntime` installed.

Each case is a model of one com.microsoft operator, random inputs, and what ONNX Runtime computes from
them on the CPU. Of the few operators that it has no CPU kernel for, numpy computes the outputs by their
definition.
"""

import math
import pathlib
import shutil

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FOLDER = pathlib.Path(__file__).resolve().parent


def case(name, op, inputs, outputs, expected=None, keep=None, **attributes):
    """`inputs` are arrays, None for one that is left out; `outputs` names the outputs, None for one that
    is left out; `expected` are their values where ONNX Runtime cannot tell; `keep` names those to compare
    if not all of them are specified."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    results = [o or "" for o in outputs]
    node = helper.make_node(op, names, results, domain="com.microsoft", **attributes)
    value = lambda n, x: helper.make_tensor_value_info(
        n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape
    )
    given = [(n, x) for n, x in zip(names, inputs) if x is not None]
    kept = keep or [o for o in results if o]
    # ONNX Runtime infers the types, but that of one output it must be told.
    results = [
        helper.make_tensor_value_info(o, TensorProto.FLOAT, None)
        if o == "qk"
        else helper.make_empty_tensor_value_info(o)
        for o in kept
    ]
    graph = helper.make_graph([node], name, [value(n, x) for n, x in given], results)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    if expected is None:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        expected = session.run(kept, dict(given))
    # A value info without a type is no valid model.
    del model.graph.output[:]
    model.graph.output.extend(value(o, x) for o, x in zip(kept, expected))
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    for kind, tensors in [("input", [x for _, x in given]), ("output", expected)]:
        for i, x in enumerate(tensors):
            tensor = numpy_helper.from_array(np.asarray(x), f"{kind}_{i}")
            (folder / f"{kind}_{i}.pb").write_bytes(tensor.SerializeToString())


def case_outputs(name):
    """The outputs of a case that is written already."""
    paths = sorted((FOLDER / name).glob("output_*.pb"))
    return [numpy_helper.to_array(onnx.load_tensor(path)) for path in paths]


rng = np.random.default_rng(1)


def x(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def ints(*values, dtype=np.int32):
    return np.array(values, dtype=dtype)


def attention():
    b, s, d, n = 2, 5, 8, 2
    w, bias = x(d, 3 * d), x(3 * d)
    data = x(b, s, d)
    base = [data, w, bias]
    case("attention", "Attention", base, ["y"], num_heads=n)
    mask = ints([1, 1, 1, 0, 0], [1, 1, 1, 1, 1])
    case("attention_mask", "Attention", [*base, mask], ["y"], num_heads=n)
    case("attention_filter", "Attention", [*base, mask], ["y"], num_heads=n, mask_filter_value=-1.5)
    case("attention_ends", "Attention", [*base, ints(3, 5)], ["y"], num_heads=n)
    case("attention_starts", "Attention", [*base, ints(5, 5, 0, 2)], ["y"], num_heads=n)
    mask3 = rng.integers(0, 2, (b, s, s)).astype(np.int32)
    case("attention_mask_3d", "Attention", [*base, mask3], ["y"], num_heads=n)
    left = ints([0, 0, 1, 1, 1], [1, 1, 1, 1, 1])
    case("attention_causal_mask", "Attention", [*base, left], ["y"], num_heads=n, unidirectional=1)
    past = x(2, b, n, 3, d // n)
    full = rng.integers(0, 2, (b, s + 3)).astype(np.int32)
    full[:, -1] = 1
    case("attention_past", "Attention", [*base, full, past], ["y", "present"], num_heads=n,
         unidirectional=1)
    score = x(1, n, s, s)
    case("attention_bias_scale", "Attention", [*base, None, None, score], ["y"], num_heads=n, scale=0.3)
    wide = x(d, 8 + 8 + 4)
    case("attention_sizes", "Attention", [data, wide, x(20)], ["y"], num_heads=n,
         qkv_hidden_sizes=[8, 8, 4])


def multi_head():
    b, s, t, d, n = 2, 4, 6, 8, 2
    h = d // n
    q, k, v = x(b, s, d), x(b, t, d), x(b, t, 12)
    case("mha", "MultiHeadAttention", [q, k, v], ["y"], num_heads=n)
    case("mha_bias", "MultiHeadAttention", [q, k, v, x(d + d + 12)], ["y", "k", "v"], num_heads=n)
    mask = rng.integers(0, 2, (b, t)).astype(np.int32)
    mask[:, 0] = 1
    case("mha_mask", "MultiHeadAttention", [q, k, v, None, mask], ["y"], num_heads=n, scale=0.7)
    case("mha_ends", "MultiHeadAttention", [q, k, v, None, ints(3, 6)], ["y"], num_heads=n)
    mask3 = rng.integers(0, 2, (b, s, t)).astype(np.int32)
    case("mha_mask_3d", "MultiHeadAttention", [q, k, v, None, mask3, x(1, n, s, t)], ["y"], num_heads=n)
    case("mha_heads_apart", "MultiHeadAttention", [q, x(b, n, t, h), x(b, n, t, h)], ["y"], num_heads=n)
    own_k, own_v = x(b, s, d), x(b, s, d)
    pasts = [x(b, n, 3, h), x(b, n, 3, h)]
    case("mha_past", "MultiHeadAttention", [q, own_k, own_v, x(3 * d), None, None, *pasts],
         ["y", "k", "v"], num_heads=n, unidirectional=1)
    case("mha_scores", "MultiHeadAttention", [q, k, v, None, mask, x(1, n, s, t)],
         ["y", None, None, "qk"], num_heads=n)


def group_query():
    b, s, n, kv, h = 2, 4, 4, 2, 16
    q, k, v = x(b, s, n * h), x(b, s, kv * h), x(b, s, kv * h)
    heads = dict(num_heads=n, kv_num_heads=kv)
    all_outputs = ["y", "k", "v"]
    prompt = [q, k, v, None, None, ints(s - 1, s - 1), ints(s)[0:1]]
    case("gqa_prompt", "GroupQueryAttention", prompt, all_outputs, **heads)
    packed = [np.concatenate([q, k, v], 2), None, None, *prompt[3:]]
    case("gqa_packed", "GroupQueryAttention", packed, all_outputs, **heads)
    angles = np.arange(12)[:, None] * (0.5 ** np.arange(h // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    rotary = [*prompt, cos, sin]
    case("gqa_rotary", "GroupQueryAttention", rotary, all_outputs, do_rotary=1, **heads)
    case("gqa_interleaved", "GroupQueryAttention", rotary, all_outputs, do_rotary=1,
         rotary_interleaved=1, **heads)
    positions = np.array([[3, 1, 2, 0], [5, 6, 7, 8]], dtype=np.int64)
    case("gqa_positions", "GroupQueryAttention", [*rotary, positions], all_outputs, do_rotary=1, **heads)
    case("gqa_bias_softcap", "GroupQueryAttention", [*prompt, None, None, None, x(1, n, s, s)],
         all_outputs, softcap=2.0, scale=0.9, **heads)
    case("gqa_window", "GroupQueryAttention", prompt, all_outputs, local_window_size=2, **heads)
    case("gqa_smooth", "GroupQueryAttention", prompt, all_outputs, smooth_softmax=1, **heads)
    sinks = [*prompt, None, None, None, None, x(n)]
    case("gqa_sink", "GroupQueryAttention", sinks, all_outputs, **heads)
    case("gqa_bidirectional", "GroupQueryAttention", prompt, all_outputs, causal=0, **heads)
    # One new token each, behind caches of different lengths in a buffer of 6.
    q1, k1, v1 = x(b, 1, n * h), x(b, 1, kv * h), x(b, 1, kv * h)
    pasts = [x(b, kv, 6, h), x(b, kv, 6, h)]
    decode = [q1, k1, v1, *pasts, ints(5, 5), ints(6)[0:1], cos, sin]
    case("gqa_decode_buffer", "GroupQueryAttention", decode, all_outputs, do_rotary=1, **heads)
    ragged = [q1, k1, v1, *pasts, ints(2, 5), ints(6)[0:1], cos, sin]
    # What the shorter cache holds behind its keys is not specified.
    case("gqa_decode_ragged", "GroupQueryAttention", ragged, all_outputs, keep=["y"], do_rotary=1,
         **heads)
    grown = [q1, k1, v1, *pasts, ints(6, 6), ints(7)[0:1], cos, sin]
    case("gqa_decode_grown", "GroupQueryAttention", grown, all_outputs, do_rotary=1,
         local_window_size=3, **heads)
    # Several new tokens behind a cache.
    one = [t[:1] for t in (q, k, v)]
    chunk = [*one, pasts[0][:1], pasts[1][:1], ints(9), ints(10)[0:1], cos, sin]
    case("gqa_chunk", "GroupQueryAttention", chunk, all_outputs, do_rotary=1, **heads)


def rotary():
    angles = np.arange(10)[:, None] * (0.5 ** np.arange(2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    offset = np.array([3], dtype=np.int64)
    positions = np.array([[0, 1, 2], [5, 7, 6]], dtype=np.int64)
    data = x(2, 3, 8)
    case("rotary", "RotaryEmbedding", [data, positions, cos, sin], ["y"])
    case("rotary_offset", "RotaryEmbedding", [data, offset, cos, sin], ["y"], interleaved=1)
    case("rotary_4d", "RotaryEmbedding", [x(2, 2, 3, 4), positions, cos, sin], ["y"])
    case("rotary_part", "RotaryEmbedding", [x(2, 3, 12), positions, cos, sin], ["y"], num_heads=2,
         rotary_embedding_dim=4)


def norms():
    data, skip, scale, beta, bias = x(2, 3, 8), x(2, 3, 8), x(8), x(8), x(8)
    case("skip_norm", "SkipLayerNormalization", [data, skip, scale, beta, bias],
         ["y", None, None, "sum"], epsilon=1e-3)
    case("skip_norm_plain", "SkipLayerNormalization", [data, x(3, 8), scale, None], ["y"])
    case("skip_rms", "SkipSimplifiedLayerNormalization", [data, skip, scale, bias],
         ["y", None, None, "sum"], epsilon=1e-2)
    case("skip_rms_plain", "SkipSimplifiedLayerNormalization", [data, skip, scale], ["y"])
    tables = [x(10, 8), x(6, 8), x(2, 8)]
    words, segments = ints([1, 9, 3], [0, 2, 2]), ints([0, 0, 1], [1, 0, 1])
    mask = ints([1, 0, 1], [1, 1, 1])
    case("embed", "EmbedLayerNormalization", [words, segments, *tables, scale, beta], ["y", "n"])
    case("embed_mask", "EmbedLayerNormalization", [words, segments, *tables, scale, beta, mask],
         ["y", "n", "sum"], epsilon=1e-3)
    places = ints([2, 1, 0])
    case("embed_positions", "EmbedLayerNormalization",
         [words, None, *tables[:2], None, scale, beta, None, places], ["y", "n"])
    image, skip = x(2, 3, 3, 8), x(2, 8)

    def group_norm(image, groups, scale, bias, epsilon=1e-5):
        n, height, width, c = image.shape
        parts = image.reshape(n, height * width, groups, c // groups).astype(np.float64)
        mean = parts.mean((1, 3), keepdims=True)
        variance = parts.var((1, 3), keepdims=True)
        normal = (parts - mean) / np.sqrt(variance + epsilon)
        return (normal.reshape(image.shape) * scale + bias).astype(np.float32)

    silu = lambda y: y / (1 + np.exp(-y))
    expected = silu(group_norm(image, 4, scale, beta))
    case("group_norm", "GroupNorm", [image, scale, beta], ["y"], [expected], groups=4, activation=1)
    expected = group_norm(image, 2, scale, beta, 1e-2).transpose(0, 3, 1, 2)
    nchw = np.ascontiguousarray(image.transpose(0, 3, 1, 2))
    case("group_norm_nchw", "GroupNorm", [nchw, scale, beta], ["y"], [expected], groups=2, activation=0,
         channels_last=0, epsilon=1e-2)
    total = image + skip[:, None, None] + bias
    expected = [group_norm(total, 4, scale, beta), total]
    case("skip_group_norm", "SkipGroupNorm", [image, scale, beta, skip, bias], ["y", "s"], expected,
         groups=4, activation=0)
    expected = data / np.sqrt((data**2).mean(-1, keepdims=True) + 1e-3) * scale
    case("rms_norm", "SimplifiedLayerNormalization", [data, scale], ["y"], [expected], epsilon=1e-3)


def products():
    case("fused_matmul", "FusedMatMul", [x(2, 4, 3), x(2, 5, 4)], ["y"], transA=1, transB=1, alpha=0.5)
    case("fused_matmul_batch", "FusedMatMul", [x(3, 2, 4), x(4, 2, 5)], ["y"], transBatchA=1,
         transBatchB=1)
    case("fused_matmul_both", "FusedMatMul", [x(4, 2, 3, 5), x(5, 2, 3, 4)], ["y"], transBatchA=1,
         transBatchB=1, transA=1, transB=1)
    case("fused_gemm", "FusedGemm", [x(3, 4), x(5, 4), x(5)], ["y"], transB=1, alpha=0.5, beta=2.0,
         activation="Relu")
    case("fused_gemm_leaky", "FusedGemm", [x(3, 4), x(4, 5)], ["y"], activation="LeakyRelu",
         activation_alpha=0.3)
    case("fused_conv", "FusedConv", [x(1, 2, 5, 5), x(3, 2, 3, 3), x(3)], ["y"], activation="Relu",
         pads=[1, 1, 1, 1])
    case("fused_conv_sum", "FusedConv", [x(1, 2, 5, 5), x(3, 2, 3, 3), x(3), x(1, 3, 3, 3)], ["y"],
         activation="HardSigmoid", activation_params=[0.3, 0.4])
    image, weight, bias = x(1, 5, 5, 2), x(3, 2, 3, 3), x(3)
    padded = np.pad(image, [(0, 0), (1, 1), (1, 1), (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2]
    expected = np.einsum("nhwcij,mcij->nhwm", windows, weight) + bias
    case("nhwc_conv", "NhwcConv", [image, weight, bias], ["y"], [expected.astype(np.float32)],
         pads=[1, 1, 1, 1], strides=[2, 1])
    for bits in (2, 4, 8):
        n, k, block = 6, 40, 16
        blocks = -(-k // block)
        weight = rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
        scales = x(n, blocks)
        zero = rng.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8)
        attributes = dict(N=n, K=k, block_size=block, bits=bits)
        data = x(2, 3, k)
        case(f"nbits_{bits}", "MatMulNBits", [data, weight, scales], ["y"], **attributes)
        case(f"nbits_{bits}_zero", "MatMulNBits", [data, weight, scales, zero, None, x(n)], ["y"],
             **attributes)


def activations():
    data, bias = x(2, 3, 8), x(8)
    case("gelu", "Gelu", [data], ["y"])
    case("quick_gelu", "QuickGelu", [data], ["y"], alpha=1.3)
    case("fast_gelu", "FastGelu", [data, bias], ["y"])
    case("bias_gelu", "BiasGelu", [data, bias], ["y"])
    residual = x(2, 3, 8)
    total = data + bias + residual
    case("bias_add", "BiasAdd", [data, bias, residual], ["y"], [total])
    kept = np.ones(data.shape, dtype=bool)
    case("bias_dropout", "BiasDropout", [data, bias, residual], ["y", "kept"], [total, kept])
    left, right = np.split(data + bias, 2, -1)
    erf = np.vectorize(math.erf)
    gelu = 0.5 * right * (1 + erf(right / math.sqrt(2)))
    case("bias_split_gelu", "BiasSplitGelu", [data, bias], ["y"], [(left * gelu).astype(np.float32)])
    scores, mask = x(2, 3, 4, 5), x(2, 1, 1, 5)
    weights = np.exp(scores + mask)
    weights /= weights.sum(-1, keepdims=True)
    case("bias_softmax", "BiasSoftmax", [scores, mask], ["y"], [weights], axis=3, is_inner_broadcast=1)


def experts():
    t, d, e, i = 5, 8, 4, 6
    data, router = x(t, d), x(t, e)
    fc1, b1, fc2, b2, fc3 = x(e, i, d), x(e, i), x(e, d, i), x(e, d), x(e, i, d)
    for activation in ("relu", "gelu", "silu", "identity"):
        case(f"moe_{activation}", "MoE", [data, router, fc1, b1, fc2, b2], ["y"], k=2,
             activation_type=activation)
    case("moe_normalised", "MoE", [x(1, t, d), router, fc1, None, fc2, None], ["y"], k=2,
         activation_type="silu", normalize_routing_weights=1)
    both, b_both = x(e, 2 * i, d), x(e, 2 * i)
    case("moe_swiglu", "MoE", [data, router, both, b_both, fc2, b2], ["y"], k=2,
         activation_type="swiglu", swiglu_fusion=1, activation_alpha=1.702, activation_beta=1.0,
         swiglu_limit=1.5, normalize_routing_weights=1)
    halves = np.concatenate([both[:, ::2], both[:, 1::2]], 1)
    interleaved = case_outputs("moe_swiglu")
    b_halves = np.concatenate([b_both[:, ::2], b_both[:, 1::2]], 1)
    case("moe_swiglu_halves", "MoE", [data, router, halves, b_halves, fc2, b2], ["y"], interleaved, k=2,
         activation_type="swiglu", swiglu_fusion=2, activation_alpha=1.702, activation_beta=1.0,
         swiglu_limit=1.5, normalize_routing_weights=1)
    apart = [both[:, ::2], b_both[:, ::2], fc2, b2, both[:, 1::2], b_both[:, 1::2]]
    case("moe_swiglu_apart", "MoE", [data, router, *map(np.ascontiguousarray, apart)], ["y"],
         interleaved, k=2, activation_type="swiglu", activation_alpha=1.702, activation_beta=1.0,
         swiglu_limit=1.5, normalize_routing_weights=1)
    chosen = router.argmax(1)
    weight = np.exp(router).max(1) / np.exp(router).sum(1)
    first = np.einsum("td,tid->ti", data, fc1[chosen]) + b1[chosen]
    third = np.einsum("td,tid->ti", data, fc3[chosen])
    second = np.einsum("ti,tdi->td", first / (1 + np.exp(-first)) * third, fc2[chosen]) + b2[chosen]
    expected = (second * weight[:, None]).astype(np.float32)
    case("moe_gated", "MoE", [data, router, fc1, b1, fc2, b2, fc3], ["y"], [expected], k=1,
         activation_type="silu")


def quantized():
    # Seven bits: without VNNI, ONNX Runtime's sums of products of u8 and i8 saturate.
    u8 = lambda *shape: rng.integers(0, 128, shape).astype(np.uint8)
    i8 = lambda *shape: rng.integers(-64, 64, shape).astype(np.int8)
    one = lambda v, dtype=np.float32: np.array(v, dtype)
    zero = lambda v: one(v, np.uint8)
    case("quantize", "QuantizeLinear", [20 * x(3, 4), one(0.37), zero(7)], ["y"])
    scales = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    case("quantize_axis", "QuantizeLinear", [20 * x(3, 4), scales, i8(4)], ["y"], axis=1)
    case("dequantize", "DequantizeLinear", [i8(3, 4), one(0.37), one(-3, np.int8)], ["y"])
    case("dequantize_axis", "DequantizeLinear", [u8(4, 3), scales, u8(4)], ["y"], axis=0)
    a, b = u8(3, 4), i8(4, 5)
    case("product_to_float", "MatMulIntegerToFloat",
         [a, b, one(0.02), one(0.03), zero(60), one(4, np.int8), x(5)], ["y"])
    columns = (rng.random(5) + 0.5).astype(np.float32)
    case("product_to_float_columns", "MatMulIntegerToFloat",
         [a, b, one(0.02), columns, zero(60), i8(5)], ["y"])
    case("product_dynamic", "DynamicQuantizeMatMul",
         [x(3, 4), b, one(0.03), one(4, np.int8), x(5)], ["y"])
    c, scheme = u8(3, 4), [one(0.05), zero(64)]
    pair = [a, one(0.02), zero(12), c, one(0.03), zero(60), *scheme]
    case("quantized_add", "QLinearAdd", pair, ["y"])
    case("quantized_mul", "QLinearMul", pair, ["y"])
    single = [a, one(0.02), zero(64)]
    case("quantized_sigmoid", "QLinearSigmoid", [*single, one(1 / 256), zero(0)], ["y"])
    case("quantized_leaky_relu", "QLinearLeakyRelu", [*single, one(0.02), zero(10)], ["y"], alpha=0.1)


if __name__ == "__main__":
    writers = (attention, multi_head, group_query, rotary, norms, products, activations, experts, quantized)
    for write in writers:
        write()
