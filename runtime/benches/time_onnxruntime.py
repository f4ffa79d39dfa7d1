"""Times ONNX Runtime on one thread: milliseconds a run, the lower quartile of many.

usage: time_onnxruntime.py MODEL FOLDER, where FOLDER holds the inputs as input_0.pb, input_1.pb, ...
"""

import itertools
import os
import statistics
import sys
import time

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, numpy_helper

LEAST_RUNS = 10
LEAST_SECONDS = 1.0


def read_inputs(folder):
    """The tensors of a data set by name."""
    inputs = {}
    for i in itertools.count():
        path = os.path.join(folder, f"input_{i}.pb")
        if not os.path.exists(path):
            return inputs
        tensor = TensorProto()
        with open(path, "rb") as file:
            tensor.ParseFromString(file.read())
        inputs[tensor.name] = np.ascontiguousarray(numpy_helper.to_array(tensor))


def main():
    model, folder = sys.argv[1:]
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = read_inputs(folder)
    session.run(None, inputs)
    times = []
    begin = time.perf_counter()
    while len(times) < LEAST_RUNS or time.perf_counter() - begin < LEAST_SECONDS:
        started = time.perf_counter()
        session.run(None, inputs)
        times.append(time.perf_counter() - started)
    print(statistics.quantiles(times)[0] * 1e3)


main()
