"""Plans of which expert computes which token, and moves of tokens there and back.

A `Plan` gives choices rows of the experts. Two moves follow it: `gather` on a device,
and `exchange` over a mesh, whose devices send each other tokens. All shapes are static.
Integers alone are sorted; the features move by gathers, forward and backward: scatters
are slow under XLA on a CPU, and not deterministic on a GPU.

Letters: G groups of S tokens with k choices each, in the order `[G, k, S]`, all first
choices before all second ones; n = k S; E experts; C rows of an expert in a group.
"""

from typing import Any, NamedTuple

from keras import ops

from remixer_tf.kernels.take_rows import take_rows


class Plan(NamedTuple):
    """Where each choice is computed, and what each row of the experts computes."""

    row: Any  # int32 [G, k, S], the row of each choice; 0 for those not kept
    kept: Any  # bool [G, k, S], whether a choice has a row
    # int32 [rows], the choice of each row, counted through all groups; any one where
    # the row is empty.
    choice: Any
    filled: Any  # bool [rows], False for empty rows
    # int32 [blocks], the expert of each block of rows, E where the block is empty. None
    # where the blocks are the experts, of G C rows each.
    block_experts: Any = None


def make_plan(choices, num_experts, capacity=None, of_experts=None):
    """Returns the `Plan` that gives the choices of a `Routing` rows.

    With a capacity each expert has C rows of each group, and late choices have none.
    Without it each expert has as many rows as it needs, in blocks of one size. Its last
    block may be almost empty. A block has half of an expert's even share, so there are
    at most 1.5 rows for each choice.

    Args:
        choices: a `Routing` of `[G, k, S]`.
        num_experts: int, E.
        capacity: int, C, or None.
        of_experts: int, the number of all experts that share the choices, if
            `num_experts` is a part of them.
    """
    groups, k, tokens = shape = ops.shape(choices.experts)
    if capacity is None:  # all groups together
        groups, n = 1, groups * k * tokens
    else:
        n = k * tokens
    experts = ops.reshape(choices.experts, (groups, n))
    kept = ops.reshape(choices.chosen, (groups, n))
    order, rank, counts, starts = _sort_by_expert(experts, kept, num_experts)
    group = ops.arange(groups, dtype="int32")[:, None]
    block_experts = None
    if capacity is None:
        block = n // (2 * (of_experts or num_experts))
        block = max(1, block) if isinstance(block, int) else ops.maximum(1, block)
        num_blocks = (n + (num_experts + 1) * (block - 1)) // block
        # Not -(-counts // block): ONNX rounds towards 0.
        blocks = (counts[:, 0] + block - 1) // block
        ends = ops.cumsum(blocks)
        is_after = ops.arange(num_blocks, dtype="int32")[:, None] >= ends
        block_experts = ops.sum(ops.cast(is_after, "int32"), axis=1)
        # Empty blocks come after the last expert's rows.
        expert = ops.minimum(block_experts, num_experts - 1)
        first = (ends - blocks) * block
        place = ops.reshape(ops.arange(num_blocks * block, dtype="int32"), (-1, block))
        place -= ops.take(first, expert)[:, None]  # among the rows of its expert
        counts, starts = (ops.take(x, expert, axis=0) for x in (counts, starts))
        row = ops.take(first, experts) + rank
    else:
        place = ops.arange(capacity, dtype="int32")
        counts, starts = counts[:, :, None], starts[:, :, None]
        row = (experts * groups + group) * capacity + rank
        kept = ops.logical_and(kept, rank < capacity)
    filled = place < counts  # [blocks, rows of a block] or [E, G, C]
    place = ops.where(filled, starts + place, 0) + group * n
    order = ops.reshape(order + group * n, (-1,))
    return Plan(
        row=ops.reshape(ops.where(kept, row, 0), shape),
        kept=ops.reshape(kept, shape),
        choice=ops.take(order, ops.reshape(place, (-1,))),
        filled=ops.reshape(filled, (-1,)),
        block_experts=block_experts,
    )


def _sort_by_expert(experts, chosen, num_experts):
    """Sorts choices `[G, n]` by expert, and by their places where equal.

    Returns int32: the choices in order, `[G, n]`, those not chosen last; the place of
    each choice among those of its expert, `[G, n]`; and the number of each expert's
    choices, and of those before them, `[E, G]`.
    """
    num_choices = ops.shape(experts)[1]
    places = ops.arange(num_choices, dtype="int32")
    experts = ops.where(chosen, experts, num_experts)
    # The place makes keys differ: no backend's sort has to be stable.
    order = ops.argsort(experts * num_choices + places, axis=1)
    order = ops.cast(order, "int32")
    is_expert = ops.equal(experts[:, :, None], ops.arange(num_experts, dtype="int32"))
    counts = ops.sum(ops.cast(is_expert, "int32"), axis=1)
    starts = ops.cumsum(counts, axis=1) - counts
    rank = ops.cast(ops.argsort(order, axis=1), "int32")  # the place in the order
    rank -= ops.take_along_axis(starts, ops.minimum(experts, num_experts - 1), axis=1)
    return order, rank, ops.transpose(counts), ops.transpose(starts)


def gather(x, choices, plan, num_experts, apply):
    """Each token by its experts, moved by gathers, float32 `[G, S, d_model]`.

    Args:
        x: `[G, S, d_model]`.
        choices, plan: a `Routing` of `[G, k, S]` and its `Plan`.
        num_experts: int, E.
        apply: a function of the experts' rows, `[blocks, rows of a block, d_model]`,
            and of each block's expert, int32 `[blocks]` or None (see `Plan`), to the
            rows' outputs.
    """
    groups, k, tokens = ops.shape(plan.row)
    d_model = ops.shape(x)[-1]

    def by_token(y):
        return ops.reshape(ops.transpose(y, (0, 2, 1)), (groups * tokens, k))

    # Empty rows get some token, and choices without a row some output: no gradient
    # flows through either.
    rows = take_rows(
        ops.reshape(x, (-1, d_model)),
        plan.choice // (k * tokens) * tokens + plan.choice % tokens,
        by_token(plan.row),
        by_token(plan.kept),
    )
    blocks = num_experts
    if plan.block_experts is not None:
        (blocks,) = ops.shape(plan.block_experts)
    rows = ops.reshape(rows, (blocks, -1, d_model))
    rows = ops.reshape(apply(rows, plan.block_experts), (-1, d_model))
    y = take_rows(
        rows, ops.reshape(plan.row, (-1,)), plan.choice[:, None], plan.filled[:, None]
    )
    y = ops.cast(ops.reshape(y, (groups, k, tokens, d_model)), "float32")
    return ops.sum(ops.where(plan.kept, choices.gates, 0)[..., None] * y, axis=1)


def exchange(x, choices, plan, num_experts, apply):
    """As `gather`, moved by products with one-hot matrices, for a mesh.

    Gathers would bring every device all tokens. XLA turns these products into two
    all-to-alls. Gates are rounded to x's dtype, since they are in these matrices, as in
    Mesh TensorFlow; `gather` multiplies by them in float32. The plan has no
    `block_experts`. Takes and returns what `gather` does.
    """
    groups, tokens, d_model = ops.shape(x)
    gates = ops.cast(choices.gates, x.dtype)[..., None]
    capacity = plan.filled.shape[0] // (num_experts * groups)
    place = plan.row // (groups * capacity) * capacity + plan.row % capacity
    place = ops.where(plan.kept, place, -1)  # -1 is no one.
    ones = ops.one_hot(place, num_experts * capacity, dtype=x.dtype)
    ones = ops.reshape(ones, (*place.shape, num_experts, capacity))
    there = ops.einsum("gksec->gecs", ones)
    back = ops.einsum("gksec->gecs", gates[..., None] * ones)
    rows = ops.einsum("gecs,gsd->egcd", there, x)
    rows = apply(ops.reshape(rows, (num_experts, -1, d_model)), None)
    rows = ops.reshape(rows, (num_experts, groups, -1, d_model))
    back = ops.cast(back, rows.dtype)
    return ops.cast(ops.einsum("gecs,egcd->gsd", back, rows), "float32")


def multiply_blocks(rows, weights, block_experts):
    """`rows[i] @ weights[block_experts[i]]`, for one block after the other.

    Unlike a product with `take(weights, block_experts)` it copies one expert's weights
    at a time, and empty blocks cost nothing: they give 0. It is for evaluation: the
    gradient of each block is as large as all weights. Rows are `[blocks, rows of a
    block, d_in]`, weights `[E, d_in, d_out]` of any dtype; the result is `[blocks, rows
    of a block, d_out]` in the rows' dtype. For `block_experts` see `Plan`.
    """
    num_experts, d_in, d_out = weights.shape
    weights = ops.convert_to_tensor(weights)  # JAX's loops take no variables.

    def product(block):
        rows, expert = block

        def compute():
            matrix = ops.slice(weights, (expert, 0, 0), (1, d_in, d_out))[0]
            return ops.matmul(rows, ops.cast(matrix, rows.dtype))

        def empty():
            return ops.zeros((ops.shape(rows)[0], d_out), rows.dtype)

        return ops.cond(expert < num_experts, compute, empty)

    return ops.map(product, (rows, block_experts))
