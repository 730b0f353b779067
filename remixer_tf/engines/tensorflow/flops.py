"""FLOPs and memory of a traced function."""

import itertools
import math
import re
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from remixer_tf.engines.products import Products

# Operations that multiply matrices, or hide what they compute, with or without a
# formula below. Those without are named wherever FLOPs are shown.
_HEAVY = re.compile(
    r"Conv\d*D|^Conv$|Conv2dNative|MatMul|FFT|Einsum|Dot(V2|General)?$|RNN|LSTM|GRU"
    r"|Cholesky|Qr$|^Lu$|Svd|Eig|Solve|Determinant|^Matrix(Inverse|Exp|Log|Square)"
    r"|Dilation2D|Attention|PyFunc|CustomCall"
)


class OpFlops(NamedTuple):
    """FLOPs of one operation of a traced function."""

    name: str  # In a called function, the caller's name comes first.
    type: str  # such as "MatMul"
    matmul: int  # of a matrix product or convolution: 2 for each multiply-add
    rest: int  # of other arithmetic on floats, see `op_flops`


def op_flops(concrete_function):
    """Returns the `OpFlops` of every operation that counts, a list.

    Matrix products count 2 m n k, and convolutions, also of channels on their own and
    in gradients, 2 for each place and weight of their kernel. Pointwise arithmetic on
    floats counts one for each output element, a reduction, cumulative or scattered sum
    one for each input element, and a softmax five for each: max, difference,
    exponential, sum, quotient. An FFT of n numbers, there or back, counts 5 n log2 n,
    half of it if they are real. The body of a loop counts as often as its maximum says,
    and once if that is unknown. The branch with the most products counts, and not the
    others.

    An operation on floats that has no formula here, such as "Cholesky" or "AvgPool", or
    whose shapes are unknown, is in the list with zeros, unless it only moves numbers.
    So is a loop of unknown length: "While" if it has products, else "While without
    products".
    """
    return list(_op_flops(concrete_function, ""))


def product_flops(concrete_function):
    """Returns the `Products` in a traced function; see `op_flops`."""
    found = op_flops(concrete_function)
    left_out = {
        op.type
        for op in found
        if not op.matmul and (not op.rest or _FFT.fullmatch(op.type))
    }
    return Products(
        sum(op.matmul for op in found),
        tuple(sorted(left_out)),
        sum(op.rest for op in found),
    )


def matmul_flops(concrete_function):
    """Returns the FLOPs of matrix products in a traced function; see `op_flops`."""
    return product_flops(concrete_function).flops


def _op_flops(function, prefix):
    for op in function.graph.get_operations():
        matmul = _matmul_flops(op)
        rest = 0 if matmul else _rest_flops(op)
        if matmul or rest or _is_heavy(op):
            yield OpFlops(prefix + op.name, op.type, matmul, rest)
        elif _is_unknown(op):
            is_complex = any(x.dtype.is_complex for x in op.outputs)
            name = f"complex {op.type}" if is_complex else op.type
            yield OpFlops(prefix + op.name, name, 0, 0)
        times = _iterations(op)
        bodies = [list(_op_flops(f, f"{prefix}{op.name}/")) for f in _called(op)]
        if op.type in _BRANCHES:
            most = max(bodies, key=_sums)
            bodies = [
                [x for x in body if body is most or not (x.matmul or x.rest)]
                for body in bodies
            ]
        for inner in itertools.chain(*bodies):
            matmul, rest = (times or 1) * inner.matmul, (times or 1) * inner.rest
            yield inner._replace(matmul=matmul, rest=rest)
        inside = [inner for body in bodies for inner in body]
        if times is None and any(inner.matmul for inner in inside):
            yield OpFlops(prefix + op.name, "While", 0, 0)
        elif times is None and any(inner.rest for inner in inside):
            yield OpFlops(prefix + op.name, "While without products", 0, 0)


def _sums(found):
    return sum(op.matmul for op in found), sum(op.rest for op in found)


def _is_heavy(op):
    # One operand is only transposed or summed.
    return _HEAVY.search(op.type) and not _is_of_one(op)


def _is_of_one(op):
    return op.type in _EINSUMS and len(op.inputs) == 1


def _is_unknown(op):
    """Whether an operation makes floats by arithmetic that counts nothing here."""
    if not op.outputs:
        return bool(_UPDATES.match(op.type))
    types = [tensor.dtype for tensor in op.outputs]
    if not any(dtype.is_complex or dtype.is_floating for dtype in types):
        return False
    if op.type in _MOVES or _RANDOM.match(op.type):
        return False
    if _is_of_one(op) and not _drops_labels(op):
        return False
    if any(_called(op)):  # The called functions have the arithmetic.
        return False
    # No formula, complex numbers or unknown shapes; an empty tensor has no arithmetic.
    formula = op.type in _WITH_FORMULA and not any(x.is_complex for x in types)
    return not (formula and all(x.shape.is_fully_defined() for x in op.inputs))


# Operations that copy, choose or sort numbers, or read them.
_MOVES = set(
    "BatchToSpaceND Bitcast BroadcastTo Cast CheckNumerics Complex Concat ConcatV2 "
    "Conj Const DepthToSpace Diag DiagPart DynamicPartition DynamicStitch Empty "
    "EnsureShape ExpandDims ExtractImagePatches Fill Gather GatherNd GatherV2 Identity "
    "IdentityN Imag MatrixBandPart MatrixDiag MatrixDiagPart MatrixDiagPartV2 "
    "MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3 MatrixSetDiag MatrixSetDiagV2 "
    "MatrixSetDiagV3 MirrorPad OneHot OnesLike Pack Pad PadV2 ParallelDynamicStitch "
    "Placeholder PlaceholderWithDefault PreventGradient Range ReadVariableOp Real "
    "Reshape ResourceGather ResourceGatherNd ResourceStridedSliceAssign Reverse "
    "ReverseSequence ReverseV2 Roll ScatterNd Select SelectV2 Slice Snapshot "
    "SpaceToBatchND SpaceToDepth Split SplitV Squeeze StopGradient StridedSlice "
    "StridedSliceGrad TensorListConcatV2 TensorListFromTensor TensorListGather "
    "TensorListGetItem TensorListPopBack TensorListStack TensorScatterUpdate "
    "TensorStridedSliceUpdate Tile TopK TopKV2 Transpose Unpack ZerosLike".split()
)
_EINSUMS = {"Einsum", "XlaEinsum"}
# Operations of optimizers that change variables and return nothing.
_UPDATES = re.compile("Resource(Sparse)?(Apply|Scatter(Nd)?(?!Update))")
_RANDOM = re.compile("(Stateless)?(Random|Truncated|Parameterized)")

_BRANCHES = {"Case", "If", "StatelessCase", "StatelessIf"}
_FUNCTIONS = {}  # from an operation's type to its attributes that are functions


def _called(op):
    """The functions that an operation calls."""
    if op.type not in _FUNCTIONS:
        kinds = ("func", "list(func)")
        attributes = [attr.name for attr in op.op_def.attr if attr.type in kinds]
        _FUNCTIONS[op.type] = attributes
    for name in _FUNCTIONS[op.type]:
        value = op.get_attr(name)
        for function in value if isinstance(value, list) else [value]:
            yield op.graph._get_function(function.name)


def _iterations(op):
    """The most turns of a loop, None if that is unknown; 1 if it is no loop."""
    if op.type not in ("While", "StatelessWhile"):
        return 1
    maximum = op.inputs[1]  # -1 for none
    if maximum.op.type == "Max":  # as Keras' recurrent layers write it
        maximum = maximum.op.inputs[0]
    maximum = tf.get_static_value(maximum)
    if maximum is None or np.min(maximum) < 0:
        return None
    return max(1, int(np.max(maximum)))


# The tensors of a convolution whose shapes tell its work: the kernel, and what its
# places were (the result, or in gradients the result's gradient).
_CONVOLUTION = re.compile(
    r"(?P<depthwise>Depthwise)?Conv(2D|3D|2dNative)?(Backprop(?P<of>Input|Filter))?(V2)?"
)


def _matmul_flops(op):
    if match := _CONVOLUTION.fullmatch(op.type):
        kernel = op.outputs[0] if match["of"] == "Filter" else op.inputs[1]
        places = op.inputs[2] if match["of"] else op.outputs[0]
        # [height, width, in, out]; in and its multiples if channels are on their own
        taps = kernel.shape[: -2 if match["depthwise"] else -1]
        return 2 * _size(places.shape) * _size(taps)
    if op.type in ("MatMul", "SparseMatMul"):
        transposed = op.get_attr("transpose_a")
    elif op.type in ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
        transposed = op.get_attr("adj_x")
    elif op.type in _EINSUMS:
        return _einsum_flops(op)
    else:
        return 0
    inner = op.inputs[0].shape[-2 if transposed else -1 :][:1]
    return _of_product(op) * _size(op.outputs[0].shape) * _size(inner)


def _of_product(op):
    """FLOPs of a multiply-add: of complex numbers four products and four sums."""
    return 8 if op.outputs[0].dtype.is_complex else 2


def _einsum_flops(op):
    labels = op.get_attr("equation").decode().split("->")[0].split(",")
    if len(labels) < 2 or any(operand.shape.rank is None for operand in op.inputs):
        return 0
    sizes = {}
    for letters, operand in zip(labels, op.inputs, strict=True):
        named = [letter for letter in letters if letter != "."]
        before = letters.index("...") if "..." in letters else len(named)
        others = operand.shape.rank - len(named)  # behind an ellipsis
        named[before:before] = range(-others, 0)
        for label, size in zip(named, operand.shape, strict=True):
            sizes[label] = max(sizes.get(label, 0), size or 0)
    return _of_product(op) * math.prod(sizes.values())


def _drops_labels(op):
    """Whether an einsum of one operand sums over some axis."""
    operand, result = op.get_attr("equation").decode().split("->")
    return bool(set(operand) - set(result))


def _size(shape):
    """The number of elements; 0 if it is unknown."""
    return tf.TensorShape(shape).num_elements() or 0


_POINTWISE = set(
    "Abs Acos Acosh Add AddV2 Asin Asinh Atan Atan2 Atanh BiasAdd Ceil Cos Cosh Div "
    "Elu Erf Erfc Erfinv Exp Expm1 Floor FloorDiv FloorMod LeakyRelu Log Log1p "
    "Maximum Minimum Mod Mul Neg Pow RealDiv Reciprocal Relu Relu6 Rint Round Rsqrt "
    "Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Square SquaredDifference Sub "
    "Tan Tanh "
    # of gradients
    "DivNoNan EluGrad InvGrad LeakyReluGrad ReciprocalGrad Relu6Grad ReluGrad "
    "RsqrtGrad SeluGrad SigmoidGrad SoftplusGrad SoftsignGrad SqrtGrad TanhGrad".split()
)
_REDUCTIONS = set("BiasAddGrad Cumprod Cumsum L2Loss Max Mean Min Prod Sum".split())
_ASSIGNMENTS = {"AssignAddVariableOp", "AssignSubVariableOp"}
_SOFTMAXES = {"LogSoftmax", "Softmax"}
# They count one for each element of the input of this number.
_SCATTERS = {
    **dict.fromkeys(("SegmentSum", "SegmentSumV2", "UnsortedSegmentSum"), 0),
    **dict.fromkeys(("TensorScatterAdd", "TensorScatterSub"), 2),
}
_WITH_FORMULA = _POINTWISE | _REDUCTIONS | _SOFTMAXES | _SCATTERS.keys() | _EINSUMS
_WITH_FORMULA |= {"AddN"}


_FFT = re.compile(r"(Batch)?(?P<back>I)?(?P<real>R)?FFT(?P<axes>2D|3D)?")


def _rest_flops(op):
    if match := _FFT.fullmatch(op.type):
        # The spectrum of real numbers is symmetric: half of the work is enough.
        numbers = (op.outputs if match["back"] else op.inputs)[0].shape
        if not _size(numbers):
            return 0
        axes = int((match["axes"] or "1D")[0])
        each = 2.5 if match["real"] else 5
        return int(each * _size(numbers) * math.log2(max(_size(numbers[-axes:]), 1)))
    if op.type in _ASSIGNMENTS:
        return _size(op.inputs[1].shape)
    if not op.outputs or not op.outputs[0].dtype.is_floating:
        return 0
    if op.type == "AddN":
        return (len(op.inputs) - 1) * _size(op.outputs[0].shape)
    if op.type in _POINTWISE:
        return _size(op.outputs[0].shape)
    if op.type in _REDUCTIONS:
        return _size(op.inputs[0].shape)
    if op.type in _SCATTERS:
        return _size(op.inputs[_SCATTERS[op.type]].shape)
    if _is_of_one(op):
        return _size(op.inputs[0].shape) * _drops_labels(op)
    if op.type in _SOFTMAXES:
        return 5 * _size(op.outputs[0].shape)
    return 0


def peak_bytes(concrete_function):
    """The most bytes of tensors alive at once, if the ops run in their order.

    A called function adds its own peak while it runs, and so does one turn of a loop.
    Variables are handles and do not count. Unknown shapes count as 0.
    """
    operations = concrete_function.graph.get_operations()
    outputs = {tensor.ref() for tensor in concrete_function.graph.outputs}
    last_use = {}
    for i, op in enumerate(operations):
        for tensor in op.inputs:
            last_use[tensor.ref()] = i
    dying = {}
    for ref, i in last_use.items():
        if ref not in outputs:
            dying.setdefault(i, []).append(ref.deref())
    alive = peak = 0
    for i, op in enumerate(operations):
        inner = max(map(peak_bytes, _called(op)), default=0)
        if op.type not in _WITHOUT_MEMORY:
            alive += sum(_bytes(t) for t in op.outputs if t.ref() in last_use)
            peak = max(peak, alive + inner)
        for tensor in dying.get(i, ()):
            if tensor.op.type not in _WITHOUT_MEMORY:
                alive -= _bytes(tensor)
    return peak


# Their outputs are other tensors' memory.
_WITHOUT_MEMORY = set(
    "Placeholder ReadVariableOp Reshape Identity ExpandDims Squeeze".split()
)


def _bytes(tensor):
    size = tensor.dtype.size or 0
    if tensor.dtype in (tf.resource, tf.variant, tf.string) or size == 0:
        return 0
    return size * (tensor.shape.num_elements() or 0)


def variable_bytes(variables):
    """Returns the bytes that variables take."""
    return sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables)
