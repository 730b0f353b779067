"""Giving each expert equally many tokens, with as much affinity as can be."""

from keras import ops

from remixer_tf.layers.base import MASKED

ROUNDS = 16  # of the prices
HALVINGS = 10  # of the interval where a threshold is looked for


def assign_balanced(affinities, mask):
    """A balanced assignment close to the best: prices, then what is left over.

    The best one solves BASE's linear assignment problem (Lewis et al. 2021, section
    3.1). Its dual has a price p_e for each expert, and a token goes to the largest
    `a_e - p_e`. An auction takes as many rounds as the data want; here all prices move
    at once, in a fixed number of rounds (our choice). With a token's margin
    `m_e = a_e - max of (a_e' - p_e') over the others`, just C tokens want expert e
    while its price lies between the C-th and the next margin: it moves half of the way
    there. Then tokens apply to their best expert that has room, and experts take those
    that would lose most by another one, until all have theirs.

    Args:
        affinities: float32 `[groups, tokens, num_experts]`, finite.
        mask: int32 `[groups, tokens]`, 1 on the tokens to assign.

    Returns:
        int32 `[groups, tokens]`, experts, 0 for what is not in the mask. Of a group's n
        tokens each expert has at most `C = ceil(n / num_experts)`, and just C where n
        is a multiple.
    """
    free = ops.cast(mask, "bool")
    num_experts = affinities.shape[-1]
    number = ops.sum(ops.cast(free, "int32"), axis=1, keepdims=True)
    capacity = -(-number // num_experts)  # [groups, 1]

    def move(_, prices):
        margins = affinities - _best_of_others(affinities - prices)
        low, high = _threshold(margins, free[..., None], capacity)
        return (prices + (low + high)[:, None] / 2) / 2

    prices = ops.fori_loop(0, ROUNDS, move, ops.zeros_like(affinities[:, :1]))
    room = ops.broadcast_to(capacity, ops.shape(prices[:, 0]))
    return _fill(affinities - prices, free, room)


def _best_of_others(values):
    """For each expert, the largest value among the others. `[.., num_experts]`."""
    best = ops.max(values, axis=-1, keepdims=True)
    is_best = _one_hot(ops.argmax(values, axis=-1), values.shape[-1])
    second = ops.max(ops.where(is_best, MASKED, values), axis=-1, keepdims=True)
    return ops.where(is_best, second, best)


def _one_hot(index, number):
    index = ops.cast(index, "int32")[..., None]
    return ops.equal(index, ops.arange(number, dtype="int32"))


def _threshold(values, valid, number):
    """An interval above whose low end lie more than `number` values, above its high end
    at most so many.

    By halving, which no more than counts: sorting takes longer on every processor.

    Args:
        values: float32 `[groups, tokens, num_experts]`.
        valid: bool, of a shape that broadcasts to it, which values count.
        number: int32 `[groups, num_experts]` or `[groups, 1]`.

    Returns:
        (low, high), float32 `[groups, num_experts]`. Where there are at most `number`,
        low is the least value.
    """
    values = ops.transpose(values, (0, 2, 1))  # Sums over the last axis are fastest.
    valid = ops.transpose(valid, (0, 2, 1))
    low = ops.min(ops.where(valid, values, -MASKED), axis=-1)
    high = ops.max(ops.where(valid, values, MASKED), axis=-1)

    def halve(_, ends):
        low, high = ends
        middle = (low + high) / 2
        above = ops.logical_and(values > middle[..., None], valid)
        many = ops.sum(ops.cast(above, "int32"), axis=-1) > number
        return ops.where(many, middle, low), ops.where(many, high, middle)

    return ops.fori_loop(0, HALVINGS, halve, (low, high))


def _fill(values, free, room):
    """Assigns all free tokens.

    In each round either all applications are granted or another expert is full: there
    are at most num_experts rounds. (Not more if values are not finite, either.)
    """
    num_experts = values.shape[-1]
    lowest = ops.min(values, axis=(1, 2), keepdims=True)
    closed = 2 * lowest - ops.max(values, axis=(1, 2), keepdims=True) - 1.0

    def some_left(experts, free, room):
        return ops.any(free)

    def apply(experts, free, room):
        open_to = ops.where(room[:, None] > 0, values, closed)
        choice = ops.cast(ops.argmax(open_to, axis=-1), "int32")
        applies = ops.logical_and(_one_hot(choice, num_experts), free[..., None])
        loss = open_to - _best_of_others(open_to)
        low, high = _threshold(loss, applies, room)
        granted = ops.logical_and(applies, loss > high[:, None])
        # Of those that lose equally, the first.
        equal = ops.logical_and(applies, loss >= low[:, None])
        equal = ops.logical_and(equal, ops.logical_not(granted))
        left = room - _count(granted)
        place = ops.cumsum(ops.cast(equal, "int32"), axis=1)
        equal = ops.logical_and(equal, place <= left[:, None])
        granted = ops.logical_or(granted, equal)
        done = ops.any(granted, axis=-1)
        return (
            ops.where(done, choice, experts),
            ops.logical_and(free, ops.logical_not(done)),
            room - _count(granted),
        )

    experts = ops.zeros_like(free, dtype="int32")
    experts, _, _ = ops.while_loop(
        some_left, apply, (experts, free, room), maximum_iterations=num_experts
    )
    return experts


def _count(chosen):
    return ops.sum(ops.cast(chosen, "int32"), axis=1)
