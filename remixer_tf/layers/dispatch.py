"""Moving tokens to the experts that compute them, and back.

All shapes are static. Integers alone are sorted; the features move by gathers, forward
and backward: scatters are slow under XLA on a CPU, and not deterministic on a GPU. Only
where most choices have no row, as when experts choose, are rows added up: gathers would
move far more than is computed.

Letters: G groups of S tokens with k choices each, in the order `[G, k, S]`, all first
choices before all second ones; n = k S; E experts; C rows of an expert in a group.
"""

from typing import Any, NamedTuple

from keras import ops

from remixer_tf.kernels.take_rows import take_rows


class Plan(NamedTuple):
    """Where each choice is computed, and what each row of the experts computes.

    Attributes:
        row: int32 `[G, k, S]`, the row of each choice; 0 for those not kept.
        kept: bool `[G, k, S]`, whether a choice has a row.
        choice: int32 `[rows]`, of each row its choice, counted through all groups; any
            one where the row is empty.
        filled: bool `[rows]`, False for empty rows.
        block_experts: int32 `[blocks]`, the expert of each block of rows, E where the
            block is empty; None where the blocks are the experts.
    """

    row: Any
    kept: Any
    choice: Any
    filled: Any
    block_experts: Any = None


class _Order(NamedTuple):
    """The choices of each group, sorted by expert, and by their places where equal.

    Attributes:
        choices: int32 `[G * n]`, counted through all groups; what is not chosen is last
            in its group.
        rank: int32 `[G, n]`, the place of a choice among those of its expert.
        counts, starts: int32 `[G, E]`, the number of each expert's choices, and of
            those before them in the group.
    """

    choices: Any
    rank: Any
    counts: Any
    starts: Any


def _sort_by_expert(experts, chosen, num_experts):
    """The `_Order` of choices `[G, n]`."""
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
    group = ops.arange(ops.shape(experts)[0], dtype="int32")[:, None]
    choices = ops.reshape(order + group * num_choices, (-1,))
    return _Order(choices, rank, counts, starts)


def capacity_plan(choices, num_experts, capacity):
    """Gives each expert C rows for each group; choices that come too late have none.

    Args:
        choices: a `Routing` of `[G, k, S]`.
        num_experts: int, E.
        capacity: int, C.

    Returns:
        a `Plan` of `E G C` rows, those of an expert side by side.
    """
    groups, k, tokens = ops.shape(choices.experts)
    n = k * tokens
    experts = ops.reshape(choices.experts, (groups, n))
    chosen = ops.reshape(choices.chosen, (groups, n))
    order = _sort_by_expert(experts, chosen, num_experts)
    kept = ops.logical_and(chosen, order.rank < capacity)
    group = ops.arange(groups, dtype="int32")[:, None]
    row = (experts * groups + group) * capacity + order.rank
    # [E, G, C]
    rank = ops.arange(capacity, dtype="int32")
    filled = rank < ops.transpose(order.counts)[:, :, None]
    place = ops.transpose(order.starts)[:, :, None] + rank
    place = ops.minimum(place, n - 1) + group * n
    return Plan(
        row=ops.reshape(ops.where(kept, row, 0), (groups, k, tokens)),
        kept=ops.reshape(kept, (groups, k, tokens)),
        choice=ops.take(order.choices, ops.reshape(place, (-1,))),
        filled=ops.reshape(filled, (-1,)),
    )


def chosen_plan(choices, capacity):
    """The `capacity_plan` where experts choose, without sorting all choices.

    Args:
        choices: a `Routing` of `[G, E, S]`, choice e of expert e.
        capacity: int, C, the most tokens that an expert has chosen of a group.

    Returns:
        see `capacity_plan`.
    """
    groups, num_experts, tokens = ops.shape(choices.chosen)
    chosen = ops.cast(choices.chosen, "int32")
    # The place makes keys differ: no backend's order of equal ones matters.
    key, token = ops.top_k(chosen * ops.arange(tokens, 0, -1, dtype="int32"), capacity)
    group = ops.arange(groups, dtype="int32")[:, None, None]
    expert = ops.arange(num_experts, dtype="int32")[:, None]
    choice = (group * num_experts + expert) * tokens + ops.cast(token, "int32")
    row = (expert * groups + group) * capacity + ops.cumsum(chosen, axis=2) - 1
    return Plan(
        row=ops.where(choices.chosen, row, 0),
        kept=choices.chosen,
        choice=ops.reshape(ops.transpose(choice, (1, 0, 2)), (-1,)),
        filled=ops.reshape(ops.transpose(key, (1, 0, 2)) > 0, (-1,)),
    )


def dropless_plan(choices, num_experts, of_experts=None):
    """Gives each expert as many rows as it needs, in blocks of one size.

    The last block of an expert may be almost empty: with blocks of half an expert's
    even share, there are at most 1.5 rows for each choice.

    Args:
        choices, num_experts: see `capacity_plan`.
        of_experts: int, how many share the choices, where these experts are a part.

    Returns:
        a `Plan`.
    """
    shape = ops.shape(choices.experts)
    total = shape[0] * shape[1] * shape[2]
    experts = ops.reshape(choices.experts, (total,))
    chosen = ops.reshape(choices.chosen, (1, total))
    order = _sort_by_expert(experts[None], chosen, num_experts)
    counts, starts = order.counts[0], order.starts[0]
    block = total // (2 * (of_experts or num_experts))
    block = max(1, block) if isinstance(block, int) else ops.maximum(1, block)
    num_blocks = (total + (num_experts + 1) * (block - 1)) // block
    # Not -(-counts // block): ONNX rounds towards 0.
    blocks = (counts + block - 1) // block
    ends = ops.cumsum(blocks)
    first_row = (ends - blocks) * block
    is_after = ops.arange(num_blocks, dtype="int32")[:, None] >= ends
    block_experts = ops.sum(ops.cast(is_after, "int32"), axis=1)
    # Empty blocks come after the last expert's rows.
    expert = ops.minimum(block_experts, num_experts - 1)
    rank = ops.reshape(ops.arange(num_blocks * block, dtype="int32"), (-1, block))
    rank -= ops.take(first_row, expert)[:, None]
    filled = rank < ops.take(counts, expert)[:, None]
    place = ops.take(starts, expert)[:, None] + rank
    place = ops.where(filled, place, 0)
    row = ops.reshape(ops.take(first_row, experts) + order.rank[0], shape)
    return Plan(
        row=ops.where(choices.chosen, row, 0),
        kept=choices.chosen,
        choice=ops.take(order.choices, ops.reshape(place, (-1,))),
        filled=ops.reshape(filled, (-1,)),
        block_experts=block_experts,
    )


def gather(x, choices, plan, num_experts, apply):
    """Each token by the experts that it chose, moved by gathers.

    Args:
        x: `[G, S, d_model]`.
        choices: a `Routing` of `[G, k, S]`.
        plan: their `Plan`.
        num_experts: int, E.
        apply: a function of the experts' rows, `[blocks, rows of a block, d_model]`,
            and of each block's expert, int32 `[blocks]` or None (see `Plan`), to the
            rows' outputs.

    Returns:
        float32 `[G, S, d_model]`.
    """
    groups, k, tokens = ops.shape(plan.row)
    d_model = ops.shape(x)[-1]

    def by_token(y):
        return ops.reshape(ops.transpose(y, (0, 2, 1)), (groups * tokens, k))

    # Empty rows get some token, and choices without a row some output: no gradient
    # flows through either.
    rows = take_rows(
        ops.reshape(x, (-1, d_model)),
        _tokens(plan),
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


def add_up(x, choices, plan, num_experts, apply):
    """As `gather`, but each row is added to its token's output.

    It moves the experts' rows alone, and not each token's k choices.

    Args: see `gather`; the plan is a `capacity_plan`.

    Returns:
        float32 `[G, S, d_model]`.
    """
    groups, _, tokens = ops.shape(plan.row)
    d_model = ops.shape(x)[-1]
    token = _tokens(plan)
    rows = ops.take(ops.reshape(x, (-1, d_model)), token, axis=0)
    rows = apply(ops.reshape(rows, (num_experts, -1, d_model)), None)
    gates = ops.take(ops.reshape(choices.gates, (-1,)), plan.choice)
    gates = ops.where(plan.filled, gates, 0)[:, None]
    rows = gates * ops.cast(ops.reshape(rows, (-1, d_model)), "float32")
    y = ops.segment_sum(rows, token, num_segments=groups * tokens)
    return ops.reshape(y, (groups, tokens, d_model))


def _tokens(plan):
    """int32 `[rows]`, each row's token, counted through all groups."""
    _, k, tokens = ops.shape(plan.row)
    return plan.choice // (k * tokens) * tokens + plan.choice % tokens


def multiply_blocks(rows, weights, block_experts):
    """`rows[i] @ weights[block_experts[i]]`, for one block after the other.

    Unlike a product with `take(weights, block_experts)` it copies one expert's weights
    at a time, and empty blocks cost nothing. It is for evaluation: the gradient of each
    block is as large as all weights.

    Args:
        rows: `[blocks, rows of a block, d_in]`.
        weights: `[E, d_in, d_out]`, of any dtype; an expert's are cast when it is used.
        block_experts: int32 `[blocks]`, E where the block is empty.

    Returns:
        `[blocks, rows of a block, d_out]`, of the rows' dtype; 0 in empty blocks.
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


def multiply(x, choices, plan, num_experts, apply, experts_choose=False):
    """As `gather`, moved by products with one-hot matrices.

    Gates are rounded to x's dtype, since they are in these matrices, as in Mesh
    TensorFlow; `gather` multiplies by them in float32.

    Args: see `gather`; the plan is a `capacity_plan`, or with `experts_choose` a
        `chosen_plan`.

    Returns:
        float32 `[G, S, d_model]`.
    """
    groups, k, tokens = ops.shape(plan.row)
    d_model = ops.shape(x)[-1]
    capacity = plan.filled.shape[0] // (num_experts * groups)
    places = num_experts * capacity
    row = plan.row % capacity
    if not experts_choose:  # Choice e is not expert e's.
        row += plan.row // (groups * capacity) * capacity
    row = ops.where(plan.kept, row, -1)  # -1 has no one

    def matrix(values=None):
        """`[G, S, E C]`: a one, or the choice's value, where a token has a row."""
        if experts_choose:
            ones = ops.one_hot(row, capacity, dtype=x.dtype)  # [G, E, S, C]
        else:
            ones = ops.one_hot(row, places, dtype=x.dtype)  # [G, k, S, E C]
        if values is not None:
            ones *= ops.cast(values, x.dtype)[..., None]
        if experts_choose:
            return ops.reshape(
                ops.transpose(ones, (0, 2, 1, 3)), (groups, tokens, places)
            )
        return ops.sum(ones, axis=1)

    rows = ops.matmul(ops.transpose(matrix(), (0, 2, 1)), x)
    rows = ops.reshape(rows, (groups, num_experts, capacity, d_model))
    rows = ops.transpose(rows, (1, 0, 2, 3))
    rows = apply(ops.reshape(rows, (num_experts, groups * capacity, d_model)), None)
    rows = ops.reshape(rows, (num_experts, groups, capacity, d_model))
    rows = ops.transpose(rows, (1, 0, 2, 3))
    rows = ops.reshape(rows, (groups, places, d_model))
    return ops.cast(ops.matmul(matrix(choices.gates), rows), "float32")


def compute_all(x, choices, num_experts, apply):
    """Each token by every expert, of which the choices are added up.

    Args: see `gather`.

    Returns:
        float32 `[G, S, d_model]`.
    """
    groups, tokens, d_model = ops.shape(x)
    rows = ops.reshape(x, (1, groups * tokens, d_model))
    y = apply(ops.broadcast_to(rows, (num_experts, groups * tokens, d_model)), None)
    y = ops.reshape(y, (num_experts, groups, tokens, d_model))
    gates = ops.where(choices.chosen, choices.gates, 0)[..., None]
    gates *= ops.one_hot(choices.experts, num_experts, dtype="float32")
    gates = ops.transpose(ops.sum(gates, axis=1), (2, 0, 1))[..., None]
    return ops.sum(gates * ops.cast(y, "float32"), axis=0)
